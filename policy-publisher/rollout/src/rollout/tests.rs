use proptest::prelude::*;

use super::*;

fn release(version: u64) -> Release {
    Release { version: BundleVersion(version), digest: format!("d{version}") }
}

fn view(version: u64, digest: &str) -> PolicyView {
    let active_digest = (version > 0).then(|| digest.to_owned());
    PolicyView { active_version: BundleVersion(version), active_digest }
}

fn at(ms: u64) -> LocalTime {
    LocalTime::from_ms(ms)
}

fn effects(append: Vec<Entry>, then: Vec<Outgoing>) -> Work {
    Effects { append, then }
}

/// Started, and the register is empty.
fn fresh() -> Rollout {
    let mut rollout = Rollout::new(Record::default());
    assert_eq!(rollout.step(at(0), Input::Started), effects(vec![], vec![Outgoing::Ask]));
    assert_eq!(rollout.step(at(0), Input::Says(view(0, ""))), Work::default());
    rollout
}

fn drafted() -> Rollout {
    let mut rollout = fresh();
    let out = rollout.step(at(0), Input::Drafted(release(1)));
    assert_eq!(out, effects(vec![Entry::Drafted(release(1))], vec![Outgoing::Register(release(1))]));
    rollout
}

const V1: BundleVersion = BundleVersion(1);

fn done() -> Work {
    effects(vec![Entry::Registered(V1), Entry::Released(V1)], vec![Outgoing::Released(release(1))])
}

#[test]
fn a_draft_that_the_register_takes_is_released() {
    let mut rollout = drafted();
    assert_eq!(rollout.next_version(), Err(MintError::Busy { version: V1 }));
    assert_eq!(rollout.step(at(1), Input::Accepted(view(1, "d1"))), done());
    assert_eq!(rollout.next_version(), Ok(BundleVersion(2)));
    assert_eq!(rollout.standing(), Standing::InStep);
}

#[test]
fn nothing_is_minted_before_the_register_was_read() {
    assert_eq!(Rollout::new(Record::default()).next_version(), Err(MintError::Unasked));
}

#[test]
fn a_draft_without_an_answer_is_offered_again_only_after_asking() {
    let mut rollout = drafted();
    assert_eq!(rollout.step(at(10), Input::Unanswered), Work::default());
    assert_eq!(rollout.next_wakeup(), Some(at(110)));
    assert_eq!(rollout.step(at(109), Input::Woken), Work::default());
    assert_eq!(rollout.step(at(110), Input::Woken), effects(vec![], vec![Outgoing::Ask]));
    let again = rollout.clone().step(at(111), Input::Says(view(0, "")));
    assert_eq!(again, effects(vec![], vec![Outgoing::Register(release(1))]));
    assert_eq!(rollout.step(at(111), Input::Says(view(1, "d1"))), done());
}

#[test]
fn waits_double_up_to_their_bound() {
    let mut rollout = drafted();
    let waits: Vec<u64> = (0..8)
        .map(|_| {
            rollout.step(at(0), Input::Unanswered);
            rollout.next_wakeup().unwrap().as_ms()
        })
        .collect();
    assert_eq!(waits, [100, 200, 400, 800, 1_600, 2_000, 2_000, 2_000]);
}

#[test]
fn a_crash_between_activation_and_release_ends_in_a_release() {
    let record = Record::replay([Entry::Drafted(release(1))]).unwrap();
    let mut rollout = Rollout::new(record);
    assert_eq!(rollout.step(at(0), Input::Started), effects(vec![], vec![Outgoing::Ask]));
    assert_eq!(rollout.step(at(0), Input::Says(view(1, "d1"))), done());
}

#[test]
fn a_crash_between_registered_and_released_needs_no_answer() {
    let record = Record::replay([Entry::Drafted(release(1)), Entry::Registered(V1)]).unwrap();
    let mut rollout = Rollout::new(record);
    let out = rollout.step(at(0), Input::Started);
    assert_eq!(out, effects(vec![Entry::Released(V1)], vec![Outgoing::Released(release(1)), Outgoing::Ask]));
}

#[test]
fn a_draft_that_was_overtaken_is_withdrawn_and_never_released() {
    let mut rollout = drafted();
    assert_eq!(rollout.step(at(0), Input::Conflict), effects(vec![], vec![Outgoing::Ask]));
    let why = Withdrawal::Overtaken { active: V1 };
    assert_eq!(
        rollout.step(at(0), Input::Says(view(1, "other"))),
        effects(vec![Entry::Withdrawn(V1)], vec![Outgoing::Withdrawn { release: release(1), why }])
    );
    assert_eq!(rollout.next_version(), Ok(BundleVersion(2)));
    assert_eq!(rollout.standing(), Standing::RegisterAhead { released: BundleVersion(0), active: V1 });
}

#[test]
fn a_refused_draft_is_withdrawn_once_the_register_shows_that_no_earlier_offer_got_in() {
    let refused = || Input::Refused { reason: "no key".to_owned() };
    let mut rollout = drafted();
    rollout.step(at(0), Input::Unanswered);
    assert_eq!(rollout.step(at(0), refused()), effects(vec![], vec![Outgoing::Ask]));
    assert_eq!(rollout.clone().step(at(0), Input::Says(view(1, "d1"))), done());
    let why = Withdrawal::Refused { reason: "no key".to_owned() };
    assert_eq!(
        rollout.step(at(0), Input::Says(view(0, ""))),
        effects(vec![Entry::Withdrawn(V1)], vec![Outgoing::Withdrawn { release: release(1), why }])
    );
}

#[test]
fn answers_that_contradict_each_other_do_not_make_a_loop() {
    let mut rollout = drafted();
    rollout.step(at(0), Input::Conflict);
    assert_eq!(rollout.step(at(0), Input::Says(view(0, ""))), Work::default());
    assert_eq!(rollout.next_wakeup(), Some(at(100)));
    let mut rollout = drafted();
    assert_eq!(rollout.step(at(0), Input::Accepted(view(0, ""))), Work::default());
    assert_eq!(rollout.next_wakeup(), Some(at(100)));
}

#[test]
fn one_draft_at_a_time_and_only_above_what_is_released() {
    let out_of_turn =
        |release| effects(vec![], vec![Outgoing::Withdrawn { release, why: Withdrawal::OutOfTurn }]);
    let mut rollout = drafted();
    assert_eq!(rollout.step(at(0), Input::Drafted(release(2))), out_of_turn(release(2)));
    rollout.step(at(0), Input::Accepted(view(1, "d1")));
    assert_eq!(rollout.step(at(0), Input::Drafted(release(1))), out_of_turn(release(1)));
}

#[test]
fn a_lower_register_is_believed_only_when_it_repeats() {
    let mut rollout = drafted();
    rollout.step(at(0), Input::Accepted(view(1, "d1")));
    let mut restarted = Rollout::new(rollout.record().clone());
    restarted.step(at(0), Input::Started);
    let behind = MintError::RegisterBehind { released: V1, active: BundleVersion(0) };
    for (mut rollout, until_then) in [(rollout, Ok(BundleVersion(2))), (restarted, Err(MintError::Unasked))] {
        for _ in 1..LOWER_ANSWERS_MAX {
            assert_eq!(rollout.step(at(0), Input::Says(view(0, ""))), Work::default());
            assert_eq!(rollout.next_version(), until_then);
        }
        rollout.step(at(0), Input::Says(view(0, "")));
        assert_eq!(rollout.next_version(), Err(behind.clone()));
        rollout.step(at(0), Input::Says(view(0, "")));
        assert_eq!(rollout.next_wakeup(), Some(at(CHECK_EVERY_MS)));
    }
    assert!(behind.to_string().contains("below version 1"), "{behind}");
}

#[test]
fn an_empty_store_mints_above_a_register_that_is_ahead_and_says_so() {
    let mut rollout = Rollout::new(Record::default());
    rollout.step(at(0), Input::Started);
    rollout.step(at(0), Input::Says(view(7, "elsewhere")));
    assert_eq!(rollout.next_version(), Ok(BundleVersion(8)));
    assert!(rollout.standing().to_string().contains("version 7, and this publisher's store holds none"));
}

#[test]
fn the_newest_fifty_releases_are_kept() {
    let mut rollout = fresh();
    let mut forgotten = Vec::new();
    for n in 1..=53 {
        rollout.step(at(0), Input::Drafted(release(n)));
        let out = rollout.step(at(0), Input::Accepted(view(n, &format!("d{n}"))));
        forgotten.extend(out.then.into_iter().filter(|o| matches!(o, Outgoing::Forget(_))));
    }
    assert_eq!(forgotten, [1, 2, 3].map(|n| Outgoing::Forget(BundleVersion(n))));
    assert_eq!(rollout.record().kept().count(), HISTORY_MAX);
    assert_eq!(Record::replay(rollout.record().entries()).as_ref(), Ok(rollout.record()));
}

#[test]
fn a_record_that_contradicts_itself_is_refused() {
    let error = Record::replay([Entry::Drafted(release(1)), Entry::Released(V1)]).unwrap_err();
    assert_eq!(error, ReplayError { number: 2, entry: Entry::Released(V1) });
}

/// What may happen to a publisher with a register of its own, and to the wire between them.
#[derive(Debug, Clone)]
enum Event {
    Publish,
    /// Another publisher activates the next version.
    Elsewhere,
    /// The next call arrives and its answer is lost.
    LoseAnswers(u8),
    /// The next call does not arrive.
    LoseCalls(u8),
    /// The publisher crashes after this many of the entries of its next step were written.
    CrashAfter(usize),
    Wait,
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Publish),
        1 => Just(Event::Elsewhere),
        1 => (1_u8..3).prop_map(Event::LoseAnswers),
        1 => (1_u8..3).prop_map(Event::LoseCalls),
        1 => (0_usize..3).prop_map(Event::CrashAfter),
        3 => Just(Event::Wait),
    ]
}

/// A publisher, its journal, the register, and what was handed out.
struct World {
    rollout: Rollout,
    journal: Vec<Entry>,
    register: PolicyView,
    /// Everything that ever was in the register.
    active: Vec<Release>,
    handed_out: Vec<Release>,
    lost_answers: u8,
    lost_calls: u8,
    crash_after: Option<usize>,
    now: u64,
    drafts: u64,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            rollout: Rollout::new(Record::default()),
            journal: Vec::new(),
            register: view(0, ""),
            active: Vec::new(),
            handed_out: Vec::new(),
            lost_answers: 0,
            lost_calls: 0,
            crash_after: None,
            now: 0,
            drafts: 0,
        };
        world.drive(Input::Started);
        world
    }

    fn activate(&mut self, release: Release) {
        self.register = view(release.version.0, &release.digest);
        self.active.push(release);
    }

    fn offer(&mut self, release: &Release) -> Input {
        if self.register == view(release.version.0, &release.digest) {
            return Input::Accepted(self.register.clone());
        }
        if release.version.0 != self.register.active_version.0 + 1 {
            return Input::Conflict;
        }
        self.activate(release.clone());
        Input::Accepted(self.register.clone())
    }

    fn call(&mut self, answer: impl FnOnce(&mut Self) -> Input) -> Input {
        if self.lost_calls > 0 {
            self.lost_calls -= 1;
            return Input::Unanswered;
        }
        let answer = answer(self);
        if self.lost_answers > 0 {
            self.lost_answers -= 1;
            return Input::Unanswered;
        }
        answer
    }

    fn drive(&mut self, first: Input) {
        let mut inputs = vec![first];
        while let Some(input) = inputs.pop() {
            let out = self.rollout.step(at(self.now), input);
            if let Some(kept) = self.crash_after.take_if(|n| *n < out.append.len()) {
                self.journal.extend(out.append.into_iter().take(kept));
                let record = Record::replay(self.journal.clone()).unwrap();
                self.rollout = Rollout::new(record);
                // What was known to be released is served again from disk.
                inputs = vec![Input::Started];
                continue;
            }
            self.journal.extend(out.append);
            assert_eq!(Record::replay(self.journal.clone()).as_ref(), Ok(self.rollout.record()));
            for outgoing in out.then {
                match outgoing {
                    Outgoing::Ask => inputs.push(self.call(|w| Input::Says(w.register.clone()))),
                    Outgoing::Register(release) => inputs.push(self.call(|w| w.offer(&release))),
                    Outgoing::Released(release) => self.handed_out.push(release),
                    Outgoing::Withdrawn { .. } | Outgoing::Forget(_) => {}
                }
            }
        }
    }

    fn happen(&mut self, event: &Event) {
        match event {
            Event::Publish => {
                if let Ok(version) = self.rollout.next_version() {
                    self.drafts += 1;
                    let digest = format!("ours-{}", self.drafts);
                    self.drive(Input::Drafted(Release { version, digest }));
                }
            }
            Event::Elsewhere => {
                let version = BundleVersion(self.register.active_version.0 + 1);
                self.activate(Release { version, digest: format!("theirs-{version}") });
            }
            Event::LoseAnswers(n) => self.lost_answers = *n,
            Event::LoseCalls(n) => self.lost_calls = *n,
            Event::CrashAfter(n) => self.crash_after = Some(*n),
            Event::Wait => {
                self.now += CHECK_EVERY_MS;
                self.drive(Input::Woken);
            }
        }
    }
}

proptest! {
    #[test]
    fn only_what_was_active_is_handed_out_and_in_order(events in proptest::collection::vec(any_event(), 1..60)) {
        let mut world = World::new();
        for event in &events {
            world.happen(event);
        }
        // Then the faults end.
        (world.lost_answers, world.lost_calls, world.crash_after) = (0, 0, None);
        for _ in 0..4 {
            world.happen(&Event::Wait);
        }
        prop_assert!(world.handed_out.iter().all(|r| world.active.contains(r)));
        let mut versions: Vec<_> = world.handed_out.iter().map(|r| r.version).collect();
        let all = versions.clone();
        versions.dedup();
        prop_assert!(versions.is_sorted(), "{:?}", all);
        prop_assert_eq!(&world.rollout.record().pending, &None);
        if let Some(digest) = world.register.active_digest.clone().filter(|d| d.starts_with("ours")) {
            let released = world.rollout.record().released().map(|r| r.digest.clone());
            prop_assert_eq!(released, Some(digest));
            prop_assert_eq!(world.rollout.standing(), Standing::InStep);
        }
    }

    #[test]
    fn a_record_written_shortly_is_the_same_record(events in proptest::collection::vec(any_event(), 1..40)) {
        let mut world = World::new();
        for event in &events {
            world.happen(event);
            let record = world.rollout.record();
            prop_assert_eq!(Record::replay(record.entries()), Ok(record.clone()));
        }
    }
}
