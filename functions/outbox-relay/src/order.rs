//! Which rows may be worked on, which messages may be published and which rows may go, in one pass over
//! a bucket: no later message of an aggregate before an earlier one on the same topic, whoever else works
//! on the bucket. Nothing here reads or sends.
//!
//! The model in `tests/model.rs` is checked with this very code.

use std::collections::{BTreeMap, BTreeSet};

/// What a pass knows. `A` names an aggregate, `P` a position in the outbox, `T` a topic.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Order<A: Ord, P, T: Ord> {
    /// Each aggregate's last row that was worked on.
    worked: BTreeMap<A, P>,
    /// Something of the aggregate is still to be done: no later row of it may go.
    unfinished: BTreeSet<A>,
    /// A message was not published: what comes after it stays too.
    held: BTreeSet<(A, T)>,
    silent: BTreeSet<T>,
}

impl<A: Ord, P, T: Ord> Default for Order<A, P, T> {
    fn default() -> Self {
        Self {
            worked: BTreeMap::new(),
            unfinished: BTreeSet::new(),
            held: BTreeSet::new(),
            silent: BTreeSet::new(),
        }
    }
}

impl<A: Ord + Clone, P: PartialEq + Clone, T: Ord + Clone> Order<A, P, T> {
    /// The row that must be gone from the outbox before one may be worked on whose predecessor this
    /// is: a query is no snapshot, and can show a row and miss the one before it. None where there is
    /// nothing to look for.
    pub fn must_be_gone<'p>(&self, aggregate: &A, previous: Option<&'p P>) -> Option<&'p P> {
        previous.filter(|previous| self.worked.get(aggregate) != Some(previous))
    }

    /// From now on the aggregate's next row may be worked on.
    pub fn work_on(&mut self, aggregate: &A, position: P) {
        self.worked.insert(aggregate.clone(), position);
    }

    pub fn may_publish(&self, aggregate: &A, topic: &T) -> bool {
        !self.silent.contains(topic) && !self.held.contains(&(aggregate.clone(), topic.clone()))
    }

    /// A message stays in the outbox: later ones of its aggregate on its topic stay with it.
    pub fn hold(&mut self, aggregate: &A, topic: &T) {
        self.held.insert((aggregate.clone(), topic.clone()));
    }

    /// A topic takes nothing from anybody.
    pub fn silence(&mut self, topic: &T) {
        self.silent.insert(topic.clone());
    }

    /// Whether a row that was worked on may be deleted; rows of an aggregate are asked for in order. One
    /// with everything done stays as long as something before it is not: a row that is gone tells other
    /// relays that all before it are done, and they look no further back.
    pub fn may_delete(&mut self, aggregate: &A, is_done: bool) -> bool {
        if !is_done {
            self.unfinished.insert(aggregate.clone());
        }
        !self.unfinished.contains(aggregate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_waits_for_the_one_before_it() {
        let mut order: Order<&str, u32, &str> = Order::default();
        assert_eq!(order.must_be_gone(&"a", None), None, "the first row waits for nothing");
        assert_eq!(order.must_be_gone(&"a", Some(&1)), Some(&1), "the row before was not seen");
        order.work_on(&"a", 1);
        assert_eq!(order.must_be_gone(&"a", Some(&1)), None);
        assert_eq!(order.must_be_gone(&"a", Some(&2)), Some(&2), "one was skipped");
        assert_eq!(order.must_be_gone(&"b", Some(&1)), Some(&1), "another aggregate's is no help");
    }

    #[test]
    fn a_held_message_holds_its_aggregate_on_its_topic_alone() {
        let mut order: Order<&str, u32, &str> = Order::default();
        order.hold(&"a", &"x");
        assert!(!order.may_publish(&"a", &"x"));
        assert!(order.may_publish(&"a", &"y"));
        assert!(order.may_publish(&"b", &"x"));
        order.silence(&"y");
        assert!(!order.may_publish(&"b", &"y"));
    }

    #[test]
    fn a_row_goes_only_after_all_before_it_in_its_aggregate() {
        let mut order: Order<&str, u32, &str> = Order::default();
        assert!(order.may_delete(&"a", true));
        assert!(!order.may_delete(&"a", false));
        assert!(!order.may_delete(&"a", true), "the one before it stays");
        assert!(order.may_delete(&"b", true));
    }
}
