//! Listeners: loopback unless told otherwise, and never open to a network without a token.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::serve::ListenerExt as _;
use tokio::net::{TcpListener, TcpSocket};

use crate::secret::Secret;
use crate::shutdown::Shutdown;
use crate::takeover::take_over;

/// How long open requests may take after the signal to end.
const DRAIN_DEADLINE: Duration = Duration::from_secs(5);
/// Connections that wait to be accepted.
const BACKLOG: u32 = 1_024;

/// Where a role listens.
#[derive(Debug, Clone)]
pub struct Listen {
    /// The address; port 0 takes any free one.
    pub addr: SocketAddr,
    /// The token that callers must show; required beyond loopback.
    pub admin_token: Option<Secret>,
}

/// Why a role does not listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Beyond loopback without a token.
    #[error(
        "setting `listen` = {addr}: an address beyond loopback needs `admin_token`, since anybody there could call \
         (the connection itself is not encrypted: TLS comes in a later version, until then put a proxy in front)"
    )]
    Unprotected {
        /// The address.
        addr: SocketAddr,
    },
    /// A token that anybody can guess.
    #[error(
        "setting `admin_token`: has {len} bytes; at least {ADMIN_TOKEN_LEN_MIN} are needed beyond loopback"
    )]
    WeakToken {
        /// Its length in bytes.
        len: usize,
    },
    /// The system refuses.
    #[error("setting `listen` = {addr}: {source}")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

/// The shortest token beyond loopback, in bytes.
pub const ADMIN_TOKEN_LEN_MIN: usize = 16;

/// Opens the listener, if the address is loopback or a token protects it; waits shortly for a former user of the
/// address that is still ending.
pub async fn bind(listen: &Listen) -> Result<TcpListener, ListenError> {
    let addr = listen.addr;
    if !addr.ip().is_loopback() {
        match &listen.admin_token {
            None => return Err(ListenError::Unprotected { addr }),
            Some(token) if token.expose().len() < ADMIN_TOKEN_LEN_MIN => {
                return Err(ListenError::WeakToken { len: token.expose().len() });
            }
            Some(_) => {
                tracing::warn!(%addr, "listening beyond loopback without TLS: the token travels in the clear");
            }
        }
    }
    let bound = take_over(|| listen_on(addr), |e| e.kind() == io::ErrorKind::AddrInUse).await;
    bound.map_err(|source| ListenError::Bind { addr, source })
}

fn listen_on(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A port whose last connections linger is free all the same.
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// Serves until `shutdown`, then lets open requests end, at most 5 s. Speaks HTTP/1.1 and HTTP/2 in the clear.
pub async fn serve(listener: TcpListener, router: Router, shutdown: Shutdown) -> io::Result<()> {
    let listener = listener.tap_io(|stream| {
        if let Err(e) = stream.set_nodelay(true) {
            tracing::debug!(error = %e, "a connection keeps Nagle's algorithm");
        }
    });
    let ended = shutdown.clone();
    let serving = axum::serve(listener, router).with_graceful_shutdown(async move { ended.wait().await });
    tokio::select! {
        done = serving.into_future() => done,
        () = async { shutdown.wait().await; tokio::time::sleep(DRAIN_DEADLINE).await } => {
            tracing::warn!("open requests did not end in time and are cut");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn beyond_loopback_a_token_of_some_length_is_demanded() {
        let addr: SocketAddr = "0.0.0.0:0".parse().unwrap();
        let open = bind(&Listen { addr, admin_token: None }).await.unwrap_err();
        assert!(
            matches!(open, ListenError::Unprotected { .. }) && open.to_string().contains("TLS"),
            "{open}"
        );
        let weak = bind(&Listen { addr, admin_token: Some(Secret::new("short")) }).await.unwrap_err();
        assert!(matches!(weak, ListenError::WeakToken { len: 5 }));
        assert!(bind(&Listen { addr, admin_token: Some(Secret::new("0123456789abcdef")) }).await.is_ok());
        let loopback = "127.0.0.1:0".parse().unwrap();
        assert!(bind(&Listen { addr: loopback, admin_token: None }).await.is_ok());
    }

    #[tokio::test]
    async fn an_address_that_becomes_free_is_waited_for() {
        let former = listen_on("127.0.0.1:0".parse().unwrap()).unwrap();
        let addr = former.local_addr().unwrap();
        let end = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            drop(former);
        };
        let listen = Listen { addr, admin_token: None };
        let (bound, ()) = tokio::join!(bind(&listen), end);
        assert_eq!(bound.unwrap().local_addr().unwrap(), addr);
    }
}
