//! Taking over from a former process: after a kill, a crash or a rolling restart, whoever had the directory or the port
//! may be a moment from its end. Waiting for it is right; waiting without an end is not.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How long a former user may take to end. Longer than a role's own way to end (5 s for open requests, and what it
/// writes and gives back after that).
pub const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// What `open` returns, called again while `is_in_use` says that its error is somebody who still has it, at most
/// [`PATIENCE`]. The first such error is logged.
pub async fn take_over<T, E: Display>(
    open: impl FnMut() -> Result<T, E>,
    is_in_use: impl Fn(&E) -> bool,
) -> Result<T, E> {
    take_over_within(PATIENCE, open, is_in_use).await
}

/// [`take_over`] with a patience of the caller's.
pub async fn take_over_within<T, E: Display>(
    patience: Duration,
    mut open: impl FnMut() -> Result<T, E>,
    is_in_use: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let began = Instant::now();
    let mut has_told = false;
    loop {
        match open() {
            Err(e) if is_in_use(&e) && began.elapsed() < patience => {
                if !has_told {
                    tracing::warn!(error = %e, patience_ms = patience.as_millis(), "waiting for the former user to end");
                    has_told = true;
                }
                sleep(LOOK_EVERY).await;
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_let_go_in_time_is_taken_and_what_is_not_is_an_error_after_the_patience() {
        let mut calls = 0;
        let late = take_over(
            || {
                calls += 1;
                if calls < 100 { Err("in use") } else { Ok(calls) }
            },
            |_| true,
        );
        assert_eq!(late.await, Ok(100));
        let began = Instant::now();
        assert_eq!(take_over(|| Err::<(), _>("in use"), |_| true).await, Err("in use"));
        assert!((PATIENCE..PATIENCE * 2).contains(&began.elapsed()));
    }

    #[tokio::test(start_paused = true)]
    async fn any_other_error_is_told_at_once() {
        let began = Instant::now();
        assert_eq!(take_over(|| Err::<(), _>("damaged"), |e| *e == "in use").await, Err("damaged"));
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
