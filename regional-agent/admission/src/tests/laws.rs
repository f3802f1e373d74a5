//! Laws over random requests at random times.

use leasehold_protocol::DecisionId;
use leasehold_protocol::admit::AdmitRequest;
use proptest::prelude::*;

use super::world::{World, ask, northstar};
use crate::Verdict;

/// One thing that happens.
#[derive(Debug, Clone)]
enum Step {
    Read { user: u8 },
    Export { user: u8 },
    Login { host: u8 },
    Release { nth: usize },
    PassMs(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0_u8..3).prop_map(|user| Step::Read { user }),
        2 => (0_u8..3).prop_map(|user| Step::Export { user }),
        4 => (0_u8..2).prop_map(|host| Step::Login { host }),
        1 => (0_usize..40).prop_map(|nth| Step::Release { nth }),
        4 => (0_u64..3_000).prop_map(Step::PassMs),
    ];
    prop::collection::vec(step, 1..300)
}

/// What was admitted.
#[derive(Default)]
struct Seen {
    /// Tokens of each user's bucket, by time in ms.
    users: [Vec<(u64, u64)>; 3],
    /// Log-ins of each host by their window.
    hosts: [std::collections::BTreeMap<u64, u64>; 2],
    /// Exports that hold a slot: until when, in ms.
    slots: Vec<(DecisionId, u64)>,
}

fn request(step: &Step) -> Option<AdmitRequest> {
    match step {
        Step::Read { user } => Some(ask("catalog", "atlas", &format!("u-{user}"))),
        Step::Export { user } => Some(ask("export", "atlas", &format!("u-{user}"))),
        Step::Login { host } => Some(AdmitRequest {
            source: Some(format!("192.0.2.{host}").parse().unwrap()),
            route: "login".to_owned(),
            ..AdmitRequest::default()
        }),
        Step::Release { .. } | Step::PassMs(_) => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_bucket_window_or_slot_ever_gives_more_than_it_has_and_a_refusal_changes_nothing(steps in steps()) {
        // Counted here alone: the leased rule is a law of the ledger and the lease manager.
        let mut bundle = northstar();
        bundle.routes[0].rules.truncate(1);
        bundle.routes[2].rules.truncate(2);
        let mut world = World::of(bundle);
        let mut seen = Seen::default();
        for step in steps {
            match &step {
                Step::PassMs(ms) => world.pass_ms(*ms),
                Step::Release { nth } => {
                    if let Some((id, until)) = seen.slots.get(*nth).cloned() {
                        let now = world.now();
                        prop_assert_eq!(world.admission.release(&id, now), until > world.now_ms);
                        seen.slots.remove(*nth);
                    }
                }
                step => {
                    let id = world.next_id();
                    let before = format!("{:?}", world.admission.counters());
                    let verdict = world.check_as(request(step).unwrap(), &id);
                    let Verdict::Allowed(report) = verdict else {
                        prop_assert_eq!(&format!("{:?}", world.admission.counters()), &before);
                        continue;
                    };
                    let now_ms = world.now_ms;
                    match step {
                        Step::Read { user } => seen.users[usize::from(*user)].push((now_ms, 1)),
                        Step::Export { user } => {
                            prop_assert!(report.holds_slot);
                            seen.users[usize::from(*user)].push((now_ms, 10));
                            seen.slots.push((id, now_ms + 120_000));
                            let running = seen.slots.iter().filter(|(_, until)| *until > now_ms).count();
                            prop_assert!(running <= 3, "{} exports at once", running);
                        }
                        Step::Login { host } => {
                            let window = world.unix().0 / 10_000;
                            let count = seen.hosts[usize::from(*host)].entry(window).or_default();
                            *count += 1;
                            prop_assert!(*count <= 20);
                        }
                        Step::Release { .. } | Step::PassMs(_) => {}
                    }
                }
            }
        }
        // Over every stretch of time, not only from the beginning: capacity plus what flows in.
        for user in &seen.users {
            for (i, (from, _)) in user.iter().enumerate() {
                let mut admitted = 0;
                for (at, cost) in &user[i..] {
                    admitted += cost;
                    prop_assert!(admitted * 1_000 <= 20_000 + 2 * (at - from), "{} in {} ms", admitted, at - from);
                }
            }
        }
    }
}
