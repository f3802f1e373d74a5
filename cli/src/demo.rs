//! `leasehold demo`: the requirement's traffic against running agents, drawn while it runs.
//!
//! Atlas floods from 50 workers, nine tenths of it in the first region (D7, D12), and starts an export each second
//! (D18). Birch's app opens now and then and reads the catalog twelve times at once (D2).

mod board;
mod traffic;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::ensure;
use console::Term;

use crate::args::{DemoArgs, Layers, Output};
use crate::demo::board::Board;
use crate::demo::traffic::Traffic;
use crate::output;
use crate::roles::until_signal;
use crate::target::Target;

/// How often the picture is drawn anew on a terminal.
const DRAW_EVERY: Duration = Duration::from_millis(250);

pub(crate) async fn run(args: &DemoArgs, layers: &Layers, output: Output) -> anyhow::Result<bool> {
    let target = Target::new(layers)?;
    let shutdown = until_signal(false)?;
    tokio::select! {
        done = drive(args, &target, output) => done,
        () = shutdown.wait() => Ok(true),
    }
}

/// Drives and draws for `args.for_s` seconds, or for ever.
pub(crate) async fn drive(args: &DemoArgs, target: &Target, output: Output) -> anyhow::Result<bool> {
    let mut agents = Vec::new();
    for client in target.agent_clients()? {
        let status = client.status().await?;
        agents.push((status.region, client));
    }
    ensure!(!agents.is_empty(), "there is no agent to talk to");
    let regions = agents.iter().map(|(region, _)| region.clone()).collect();
    let board = Arc::new(Mutex::new(Board::new(regions)));
    let traffic = Traffic::start(agents, args.rate, Arc::clone(&board));
    let end = async {
        match args.for_s {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = end => {}
        () = draw(&board, output) => {}
    }
    drop(traffic);
    let board = board.lock().unwrap_or_else(PoisonError::into_inner);
    match output {
        Output::Json => output::json(&board.summary())?,
        Output::Table => output::print(&format!("{}\n", board.draw(usize::MAX))),
    }
    Ok(board.is_within_limits())
}

/// On a terminal the picture stays in place; elsewhere each window is printed once, when it is over.
async fn draw(board: &Mutex<Board>, output: Output) {
    if output == Output::Json {
        return std::future::pending().await;
    }
    let term = Term::stdout();
    let mut ticks = tokio::time::interval(DRAW_EVERY);
    let mut lines = 0;
    loop {
        ticks.tick().await;
        let mut board = board.lock().unwrap_or_else(PoisonError::into_inner);
        if !term.is_term() {
            for row in board.take_finished() {
                output::print(&format!("{row}\n"));
            }
            continue;
        }
        let picture = board.draw(2);
        // A terminal that cannot be drawn on loses the picture; the traffic goes on.
        let _ = term.clear_last_lines(lines);
        let _ = term.write_line(&picture);
        let width = usize::from(term.size().1).max(1);
        lines = picture.lines().map(|line| console::measure_text_width(line).div_ceil(width).max(1)).sum();
    }
}
