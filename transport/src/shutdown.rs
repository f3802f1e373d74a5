//! A role's life, and the one signal that ends it.

use std::pin::Pin;

use tokio::sync::watch;

/// A role's whole life. Boxed, so that it is compiled in the role's own crate and not again by everybody who awaits it.
pub type RoleFuture<E> = Pin<Box<dyn Future<Output = Result<(), E>> + Send>>;

/// Resolves once the role shall end. Clones see the same signal.
#[derive(Debug, Clone)]
pub struct Shutdown(watch::Receiver<bool>);

/// Gives the signal, at the latest when it is dropped.
#[derive(Debug)]
pub struct ShutdownTrigger(watch::Sender<bool>);

impl Shutdown {
    /// A signal and its trigger.
    pub fn new() -> (ShutdownTrigger, Self) {
        let (sender, receiver) = watch::channel(false);
        (ShutdownTrigger(sender), Self(receiver))
    }

    /// Waits for the signal.
    pub async fn wait(&self) {
        let mut receiver = self.0.clone();
        // An error means that the trigger was dropped, which is the signal too.
        let _ = receiver.wait_for(|ended| *ended).await;
    }
}

impl ShutdownTrigger {
    /// Gives the signal.
    pub fn trigger(&self) {
        self.0.send_replace(true);
    }
}
