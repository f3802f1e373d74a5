//! Seeds of faults that were mended. A seed means what it meant only as long as plans are drawn the same way, so each
//! fault has a test of its own in the crate it was in, too.

use leasehold_simulations::{Mutant, Plan, run_plan};

#[test]
fn seeds_that_once_broke_a_rule_no_longer_do() {
    let mended = [
        // An agent forgot a window that had lapsed and was reported, while the window went on; the next answer
        // brought it back with all its tokens and none of its spends.
        Plan::draw(32, Mutant::None),
        // The same after a pause of more than a session, in the middle of a long window.
        Plan::draw_sessions(2, Mutant::None),
        // An allocator that could not place itself in time answered a frame whose settles it had not taken in; the
        // agent forgot what it held for reported, and the line went on in that window.
        Plan::draw(68, Mutant::None),
        // The probe of a lost allocator was due at a time in the past, so the run never got past that moment.
        Plan::draw(1, Mutant::None),
    ];
    for plan in mended {
        let report = run_plan(plan, false);
        assert_eq!(report.violation, None, "reproduce with: {}", report.reproduce());
    }
}
