//! What a run does, drawn from its seed: the demand, the clocks and the mix of faults.

use leasehold_protocol::time::DRIFT_PPM_DEFAULT;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// A safety rule that is broken on purpose, to show that the checker would notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// Nothing is broken.
    None,
    /// Leases live 15 s, whatever their window (D13 without the clamp).
    NoClamp,
    /// The leader answers a grant before a quorum has it.
    AnswerBeforeDurable,
    /// A lease's life is counted from the answer's receipt, not from the request's sending.
    LifeFromReceipt,
    /// The drift margin is zero although the clocks drift.
    NoDriftMargin,
    /// An agent comes back under the life it had.
    SameLife,
    /// One spend in 32 is not debited.
    ForgottenSpend,
    /// Safe and useless: no token ever reaches an agent.
    GrantsNothing,
    /// A leader that cannot place itself on the line goes on from its wall clock at once.
    NoWait,
}

impl Mutant {
    /// All of them but [`Mutant::None`], each with its name and how what it breaks shows.
    pub const ALL: [(Mutant, &'static str, &'static str); 8] = [
        (Mutant::NoClamp, "no-clamp", "late"),
        (Mutant::AnswerBeforeDurable, "answer-before-durable", "overshoot"),
        (Mutant::LifeFromReceipt, "life-from-receipt", "late"),
        (Mutant::NoDriftMargin, "no-drift-margin", "late"),
        (Mutant::SameLife, "same-life", "overshoot"),
        (Mutant::ForgottenSpend, "forgotten-spend", "overshoot"),
        (Mutant::GrantsNothing, "grants-nothing", "idle"),
        (Mutant::NoWait, "no-wait", "late"),
    ];
}

/// No mutant has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no mutant is called {0:?}")]
pub struct UnknownMutant(String);

impl std::str::FromStr for Mutant {
    type Err = UnknownMutant;
    fn from_str(text: &str) -> Result<Self, UnknownMutant> {
        if text == "none" {
            return Ok(Self::None);
        }
        let known = Self::ALL.iter().find(|(_, name, _)| *name == text);
        known.map(|(mutant, _, _)| *mutant).ok_or_else(|| UnknownMutant(text.to_owned()))
    }
}

/// The lengths that windows can have, in ms.
pub(crate) const WINDOWS_MS: [u64; 4] = [1_000, 2_000, 5_000, 10_000];

/// Once faults stop, demand is served again within this, in ms.
pub const RECOVERY_MS: u64 = 5_000;

/// One run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed it was drawn from.
    pub seed: u64,
    /// Regions, one agent each.
    pub agents: usize,
    /// Tokens a window.
    pub limit: u64,
    /// The window's length in ms.
    pub window_ms: u64,
    /// Mean requests a second of each agent.
    pub rates: Vec<u64>,
    /// After a request, an agent hears none for a while this often, per 1,000.
    pub pause_permille: u32,
    /// The longest such while, in ms.
    pub pause_max_ms: u64,
    /// How long faults go on, in ms of true time.
    pub faulty_ms: u64,
    /// How long the run goes on after the last fault, in ms: the time to recover and two windows.
    pub calm_ms: u64,
    /// The shortest one-way delay, in ms.
    pub delay_min_ms: u64,
    /// The longest one-way delay, in ms.
    pub delay_max_ms: u64,
    /// Messages lost, per 1,000.
    pub loss_permille: u32,
    /// Messages delivered twice, per 1,000.
    pub duplicate_permille: u32,
    /// The drift margin that leases keep, in parts per million. A large one stands for long windows, which would take
    /// long to run.
    pub drift_ppm: u32,
    /// Clock rates are off by at most this, either way. The drift margin covers twice this and the slewing.
    pub rate_ppm_max: i64,
    /// Wall clocks are off by at most this, either way, in ms.
    pub wall_offset_max_ms: i64,
    /// Mean ms between two faults of each kind; 0: none of that kind.
    pub leader_crash_every_ms: u64,
    /// Cuts between one agent and the allocator.
    pub partition_every_ms: u64,
    /// An agent restarts with nothing.
    pub restart_every_ms: u64,
    /// A wall clock jumps.
    pub jump_every_ms: u64,
    /// The machine of one replica boots, or those of all, and a leader among them is gone.
    pub boot_every_ms: u64,
    /// The limit changes by a new bundle.
    pub limit_change_every_ms: u64,
    /// Of these changes, those that change the window's length too, in percent.
    pub length_change_percent: u32,
    /// What is broken on purpose.
    pub mutant: Mutant,
}

impl Plan {
    /// The plan of `seed`.
    pub fn draw(seed: u64, mutant: Mutant) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let agents = rng.random_range(2..=5);
        let window_ms = *pick(&mut rng, &WINDOWS_MS);
        let limit = rng.random_range(10..=1_000_u64);
        // From well below the limit to several times it.
        let share = limit * 1_000 / window_ms / agents as u64 + 1;
        let rates = (0..agents).map(|_| (share * rng.random_range(1..=40) / 10).clamp(1, 400)).collect();
        let delay_min_ms = rng.random_range(1..=60);
        let drift_ppm = *pick(&mut rng, &[DRIFT_PPM_DEFAULT, 20_000]);
        let rate_percent = *pick(&mut rng, &[0, 5, 24]);
        let calm_ms = RECOVERY_MS + 2 * window_ms + 500;
        let every = |rng: &mut ChaCha8Rng, ms: u64| if rng.random_bool(0.6) { ms } else { 0 };
        let mut plan = Self {
            seed,
            agents,
            limit,
            window_ms,
            rates,
            pause_permille: 0,
            pause_max_ms: 0,
            faulty_ms: 12_000,
            calm_ms,
            delay_min_ms,
            delay_max_ms: delay_min_ms + *pick(&mut rng, &[2, 20, 150, 600]),
            loss_permille: *pick(&mut rng, &[0, 0, 10, 100, 300]),
            duplicate_permille: *pick(&mut rng, &[0, 20, 200]),
            drift_ppm,
            rate_ppm_max: i64::from(drift_ppm) * rate_percent / 100,
            wall_offset_max_ms: *pick(&mut rng, &[0, 500, 300_000]),
            leader_crash_every_ms: every(&mut rng, 2_500),
            partition_every_ms: every(&mut rng, 3_000),
            restart_every_ms: every(&mut rng, 4_000),
            jump_every_ms: every(&mut rng, 3_000),
            boot_every_ms: if rng.random_bool(0.3) { 6_000 } else { 0 },
            limit_change_every_ms: every(&mut rng, 5_000),
            length_change_percent: *pick(&mut rng, &[0, 0, 30]),
            mutant,
        };
        plan.calm_ms += plan.recovery_ms() - RECOVERY_MS;
        plan
    }

    /// When demand must be served again after the last fault, in ms: [`RECOVERY_MS`], and after a boot of all
    /// machines the life of the longest lease, which is one of the window ahead.
    pub fn recovery_ms(&self) -> u64 {
        let longest = 2 * self.window_ms_max();
        RECOVERY_MS + if self.boot_every_ms > 0 { longest + longest / 20 } else { 0 }
    }

    /// An hour with one window, leased by sessions that are extended, lapse while an agent pauses, and are taken up
    /// again. The window turns once.
    pub fn draw_sessions(seed: u64, mutant: Mutant) -> Self {
        let drawn = Self::draw(seed, mutant);
        let slower = |ms: u64| ms * 60;
        Self {
            window_ms: 3_600_000,
            limit: drawn.limit * 5,
            rates: drawn.rates.iter().map(|rate| rate.div_ceil(200)).collect(),
            pause_permille: 20,
            pause_max_ms: 1_500_000,
            faulty_ms: 4_000_000,
            calm_ms: 400_000,
            leader_crash_every_ms: slower(drawn.leader_crash_every_ms),
            partition_every_ms: slower(drawn.partition_every_ms),
            restart_every_ms: slower(drawn.restart_every_ms),
            jump_every_ms: slower(drawn.jump_every_ms),
            boot_every_ms: 0,
            limit_change_every_ms: slower(drawn.limit_change_every_ms),
            length_change_percent: 0,
            ..drawn
        }
    }

    /// The same demand over a network that neither loses nor repeats, and nothing that breaks.
    #[must_use]
    pub fn without_faults(self) -> Self {
        Self {
            faulty_ms: 1,
            loss_permille: 0,
            duplicate_permille: 0,
            leader_crash_every_ms: 0,
            partition_every_ms: 0,
            restart_every_ms: 0,
            jump_every_ms: 0,
            boot_every_ms: 0,
            limit_change_every_ms: 0,
            ..self
        }
    }

    /// The arguments after the seed with which the examples draw this plan.
    pub fn how(&self) -> String {
        let name = Mutant::ALL
            .iter()
            .find(|(known, _, _)| *known == self.mutant)
            .map_or("none", |(_, name, _)| name);
        if self.pause_permille > 0 { format!("{name} sessions") } else { name.to_owned() }
    }

    /// The longest window that the run can have, in ms.
    pub fn window_ms_max(&self) -> u64 {
        let can_change = self.limit_change_every_ms > 0 && self.length_change_percent > 0;
        let changed = if can_change { WINDOWS_MS.iter().copied().max() } else { None };
        changed.unwrap_or(self.window_ms)
    }

    /// The generator for the run itself, apart from the one that drew the plan.
    pub fn generator(&self) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(1);
        rng
    }
}

/// One of `choices`.
pub(crate) fn pick<'a, T>(rng: &mut ChaCha8Rng, choices: &'a [T]) -> &'a T {
    let at = usize::try_from(rng.next_u64() % choices.len() as u64).unwrap_or(0);
    choices.get(at).expect("the index is below the length, and no list of choices is empty")
}
