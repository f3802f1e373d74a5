//! HTTP as every role speaks it.
