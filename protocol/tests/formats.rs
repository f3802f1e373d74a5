//! What version 1 wrote stays readable. Messages between roles of different versions tolerate members that they do not
//! know; what is signed or written by people does not.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use leasehold_protocol::admit::{Decision, Refusal};
use leasehold_protocol::bundle::Bundle;
use leasehold_protocol::envelope::{Envelope, digest};
use leasehold_protocol::lease::{LeaseFrame, LeaseFrameAnswer};
use leasehold_protocol::policy::{BundleError, CheckedBundle};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Reads `text`, checks that it is written again as it was, and returns it as a value.
fn same_again<T: DeserializeOwned + Serialize>(text: &str) -> Value {
    let value: Value = serde_json::from_str(text).unwrap();
    let read: T = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), value);
    value
}

#[test]
fn messages_of_version_1_are_read_and_written_as_they_were() {
    same_again::<LeaseFrame>(include_str!("formats/frame-1.json"));
    same_again::<LeaseFrameAnswer>(include_str!("formats/frame-answer-1.json"));
    same_again::<Decision>(include_str!("formats/decision-1.json"));
    same_again::<Refusal>(include_str!("formats/refusal-1.json"));
    same_again::<Envelope>(include_str!("formats/envelope-1.json"));
}

#[test]
fn a_bundle_of_version_1_is_canonical_and_an_unknown_member_is_refused() {
    let bytes = include_bytes!("formats/bundle-1.json");
    let bundle = CheckedBundle::from_bytes(bytes).unwrap();
    assert_eq!(bundle.to_bytes(), bytes);
    let envelope: Envelope = serde_json::from_str(include_str!("formats/envelope-1.json")).unwrap();
    assert_eq!(digest(&envelope.payload_bytes().unwrap()), digest(bytes));
    let mut more: Value = serde_json::from_slice(bytes).unwrap();
    more["rules"][0]["colour"] = json!("red");
    let refused = CheckedBundle::from_bytes(&serde_json::to_vec(&more).unwrap());
    assert!(matches!(refused, Err(BundleError::Malformed(text)) if text.contains("colour")));
    assert!(serde_json::from_slice::<Bundle>(bytes).is_ok());
}

#[test]
fn a_later_versions_member_of_a_message_is_passed_over() {
    let mut frame: Value = serde_json::from_str(include_str!("formats/frame-1.json")).unwrap();
    frame["acquires"][0]["horizon_ms"] = json!(4_000);
    frame["priority"] = json!("high");
    assert!(serde_json::from_value::<LeaseFrame>(frame).is_ok());
    let mut answer: Value = serde_json::from_str(include_str!("formats/frame-answer-1.json")).unwrap();
    answer["answers"][0]["outcome"]["recall"] = json!(true);
    assert!(serde_json::from_value::<LeaseFrameAnswer>(answer).is_ok());
}
