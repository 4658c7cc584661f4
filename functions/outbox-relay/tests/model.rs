//! The protocol between commits, bells, relays and the broker, checked in every interleaving within
//! small bounds: nothing is published before what came before it on its topic, nothing is lost, and
//! whatever has happened, one healthy pass drains the outbox.
//!
//! A query is modelled as what it is, no snapshot: it walks along the positions while others commit, so
//! it passes by where a row will be, and may find that row's successor. The order in which a relay works
//! is the relay's own code, `outbox_relay::order`.

use std::collections::{BTreeMap, BTreeSet};

use outbox_relay::order::Order;
use stateright::{Checker as _, Model, Property};

/// Created at, aggregate, seq: as the outbox sorts its rows.
type Position = (u8, u8, u8);
type Topic = u8;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Row {
    previous: Option<Position>,
    /// The topics of its messages that nobody noted as acknowledged.
    pending: BTreeSet<Topic>,
}

/// A row that a relay works on, and what of it was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct InHand {
    position: Position,
    pending: BTreeSet<Topic>,
    acknowledged: BTreeSet<Topic>,
}

/// What a relay is about to write. Writes are made in any order, and a crash may come between any two.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Write {
    Delete(Position),
    Note(Position, BTreeSet<Topic>),
}

/// One relay at work on the bucket.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Pass {
    order: Order<u8, Position, Topic>,
    began_after: Option<Position>,
    /// How far the query has read.
    read_to: Option<Position>,
    /// Read, and not worked on.
    page: Vec<(Position, Row)>,
    hand: Vec<InHand>,
    writes: Vec<Write>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct State {
    outbox: BTreeMap<Position, Row>,
    /// Each aggregate's last position.
    last: BTreeMap<u8, Position>,
    /// What consumers have seen, on each topic.
    seen: BTreeSet<(Topic, u8, u8)>,
    /// A consumer saw something before what came before it.
    out_of_order: bool,
    has_bell: bool,
    relays: Vec<Option<Pass>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Action {
    /// By one of two machines, whose clocks differ; its bell may be lost.
    Commit {
        aggregate: u8,
        slow_clock: bool,
        bell: bool,
    },
    RingAll,
    Begin(usize),
    /// What lies before was looked at a moment ago, or by an invocation that ran out of time.
    BeginAfter(usize, Position),
    /// The query passes by a place where no row is yet.
    PassBy(usize, Position),
    /// The query reads one more row.
    Read(usize),
    /// The page is over; those of its rows that may be are taken in hand.
    Take(usize),
    Publish(usize, Position, Topic, Outcome),
    /// All answers are in: what is to be written is settled.
    Judge(usize),
    Write(usize, Write),
    End(usize),
    Crash(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Outcome {
    Acknowledged,
    /// The broker has it, and the answer is lost.
    AnswerLost,
    Refused,
}

#[derive(Clone, Copy)]
struct Protocol {
    /// For each aggregate, the topics of each of its rows.
    aggregates: &'static [&'static [&'static [Topic]]],
    relays: usize,
    /// Rows of a page.
    page: usize,
    /// Two machines commit, and their clocks differ.
    has_two_clocks: bool,
    /// Off, to see that the model finds what they are for.
    checks_predecessor: bool,
    deletes_in_order: bool,
}

impl Protocol {
    /// Where an aggregate's next row will be, by this clock.
    fn next_position(state: &State, aggregate: u8, slow_clock: bool) -> Position {
        let previous = state.last.get(&aggregate).copied();
        let time: u8 = state.last.values().map(|(_, _, seq)| seq).sum();
        let clock = if slow_clock { time } else { time + 10 };
        // Never before the aggregate's own past.
        let created = previous.map_or(clock, |(created, _, _)| created.max(clock));
        (created, aggregate, previous.map_or(1, |(_, _, seq)| seq + 1))
    }

    fn clocks(&self) -> &'static [bool] {
        if self.has_two_clocks { &[false, true] } else { &[false] }
    }

    fn topics(&self, aggregate: u8, seq: u8) -> BTreeSet<Topic> {
        self.aggregates[usize::from(aggregate)][usize::from(seq) - 1].iter().copied().collect()
    }

    /// The aggregates that have something to commit still.
    fn committing<'a>(&'a self, state: &'a State) -> impl Iterator<Item = u8> + 'a {
        (0..).zip(self.aggregates).filter_map(|(aggregate, rows): (u8, _)| {
            let done = state.last.get(&aggregate).map_or(0, |(_, _, seq)| usize::from(*seq));
            (done < rows.len()).then_some(aggregate)
        })
    }

    fn commit(&self, state: &mut State, aggregate: u8, slow_clock: bool, bell: bool) {
        let previous = state.last.get(&aggregate).copied();
        let position = Self::next_position(state, aggregate, slow_clock);
        let row = Row { previous, pending: self.topics(aggregate, position.2) };
        state.outbox.insert(position, row);
        state.last.insert(aggregate, position);
        state.has_bell |= bell;
    }

    fn begin() -> Pass {
        Pass {
            order: Order::default(),
            began_after: None,
            read_to: None,
            page: Vec::new(),
            hand: Vec::new(),
            writes: Vec::new(),
        }
    }

    fn next_row(state: &State, pass: &Pass) -> Option<Position> {
        let after = |position: &&Position| pass.read_to.is_none_or(|read_to| **position > read_to);
        state.outbox.keys().find(after).copied()
    }

    fn read(state: &State, pass: &mut Pass) {
        let position = Self::next_row(state, pass).expect("there is one");
        pass.read_to = Some(position);
        pass.page.push((position, state.outbox[&position].clone()));
    }

    /// A page's rows, and before each what it depends on from before where the pass began.
    fn with_earlier(state: &State, pass: &mut Pass) -> Vec<(Position, Row)> {
        let mut rows: Vec<(Position, Row)> = Vec::new();
        for (position, row) in std::mem::take(&mut pass.page) {
            let mut chain = vec![(position, row)];
            while let Some((_, row)) = chain.last()
                && let Some(previous) = pass.order.must_be_gone(&position.1, row.previous.as_ref())
                && pass.began_after.is_some_and(|began| *previous <= began)
                && !rows.iter().any(|(position, _)| position == previous)
                && let Some(row) = state.outbox.get(previous)
            {
                chain.push((*previous, row.clone()));
            }
            rows.extend(chain.into_iter().rev());
        }
        rows
    }

    /// Takes a page's rows in hand, but those whose predecessors are still to come.
    fn take(&self, state: &State, pass: &mut Pass) {
        for (position, row) in Self::with_earlier(state, pass) {
            let aggregate = position.1;
            let look = pass.order.must_be_gone(&aggregate, row.previous.as_ref());
            let waits = look.is_some_and(|previous| state.outbox.contains_key(previous));
            if waits && self.checks_predecessor {
                continue;
            }
            pass.order.work_on(&aggregate, position);
            let acknowledged = BTreeSet::new();
            pass.hand.push(InHand { position, pending: row.pending, acknowledged });
        }
    }

    /// What may be published next: of an aggregate's messages on a topic, the first.
    fn publishable(pass: &Pass) -> Vec<(Position, Topic)> {
        let mut lanes: BTreeMap<(u8, Topic), Position> = BTreeMap::new();
        for row in &pass.hand {
            for topic in row.pending.difference(&row.acknowledged) {
                lanes.entry((row.position.1, *topic)).or_insert(row.position);
            }
        }
        let open = lanes
            .into_iter()
            .filter(|((aggregate, topic), _)| pass.order.may_publish(aggregate, topic));
        open.map(|((_, topic), position)| (position, topic)).collect()
    }

    fn publish(
        &self,
        state: &mut State,
        relay: usize,
        position: Position,
        topic: Topic,
        outcome: Outcome,
    ) {
        let pass = state.relays[relay].as_mut().expect("it works");
        let (_, aggregate, seq) = position;
        match outcome {
            Outcome::Acknowledged => {
                let mut rows = pass.hand.iter_mut();
                let row = rows.find(|row| row.position == position).expect("it is in hand");
                row.acknowledged.insert(topic);
            }
            Outcome::AnswerLost | Outcome::Refused => pass.order.hold(&aggregate, &topic),
        }
        if outcome != Outcome::Refused {
            let mut earlier = (1..seq).filter(|seq| self.topics(aggregate, *seq).contains(&topic));
            state.out_of_order |= !earlier.all(|seq| state.seen.contains(&(topic, aggregate, seq)));
            state.seen.insert((topic, aggregate, seq));
        }
    }

    fn judge(&self, pass: &mut Pass) {
        for row in std::mem::take(&mut pass.hand) {
            let is_done = row.pending == row.acknowledged;
            let may_delete = pass.order.may_delete(&row.position.1, is_done);
            if may_delete || (is_done && !self.deletes_in_order) {
                pass.writes.push(Write::Delete(row.position));
            } else if !row.acknowledged.is_empty() {
                pass.writes.push(Write::Note(row.position, row.acknowledged));
            }
        }
    }

    fn write(state: &mut State, relay: usize, write: &Write) {
        state.relays[relay].as_mut().expect("it works").writes.retain(|each| each != write);
        match write {
            Write::Delete(position) => {
                state.outbox.remove(position);
            }
            // Only a row that is still there is changed; one that is gone is not made again.
            Write::Note(position, topics) => {
                if let Some(row) = state.outbox.get_mut(position) {
                    row.pending.retain(|topic| !topics.contains(topic));
                }
            }
        }
    }

    /// Everybody dies, the schedule rings, and one relay works with a healthy broker.
    fn drains(&self, state: &State) -> bool {
        let mut state = state.clone();
        state.relays = vec![Some(Self::begin())];
        while let Some(mut pass) = state.relays[0].take()
            && Self::next_row(&state, &pass).is_some()
        {
            Self::read(&state, &mut pass);
            self.take(&state, &mut pass);
            while let Some((position, topic)) = Self::publishable(&pass).first().copied() {
                state.relays[0] = Some(pass);
                self.publish(&mut state, 0, position, topic, Outcome::Acknowledged);
                pass = state.relays[0].take().expect("it works");
            }
            self.judge(&mut pass);
            let writes = pass.writes.clone();
            state.relays[0] = Some(pass);
            for write in writes {
                Self::write(&mut state, 0, &write);
            }
        }
        state.outbox.is_empty() && self.all_seen(&state) && !state.out_of_order
    }

    /// The messages of everything that was committed.
    fn committed<'a>(&'a self, state: &'a State) -> impl Iterator<Item = (Topic, u8, u8)> + 'a {
        state.last.values().flat_map(move |(_, aggregate, last)| {
            (1..=*last).flat_map(move |seq| {
                self.topics(*aggregate, seq).into_iter().map(move |topic| (topic, *aggregate, seq))
            })
        })
    }

    fn all_seen(&self, state: &State) -> bool {
        self.committed(state).all(|message| state.seen.contains(&message))
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { relays: vec![None; self.relays], ..State::default() }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for aggregate in self.committing(state) {
            for slow_clock in self.clocks().iter().copied() {
                for bell in [false, true] {
                    actions.push(Action::Commit { aggregate, slow_clock, bell });
                }
            }
        }
        if !state.has_bell {
            actions.push(Action::RingAll);
        }
        for (relay, pass) in state.relays.iter().enumerate() {
            let Some(pass) = pass else {
                if state.has_bell {
                    actions.push(Action::Begin(relay));
                    let rows = state.outbox.keys().copied();
                    actions.extend(rows.map(|row| Action::BeginAfter(relay, row)));
                }
                continue;
            };
            actions.push(Action::Crash(relay));
            if !pass.hand.is_empty() {
                let open = Self::publishable(pass);
                for (position, topic) in &open {
                    for outcome in [Outcome::Acknowledged, Outcome::AnswerLost, Outcome::Refused] {
                        actions.push(Action::Publish(relay, *position, *topic, outcome));
                    }
                }
                if open.is_empty() {
                    actions.push(Action::Judge(relay));
                }
                continue;
            }
            if !pass.writes.is_empty() {
                actions
                    .extend(pass.writes.iter().cloned().map(|write| Action::Write(relay, write)));
                continue;
            }
            let next = Self::next_row(state, pass);
            if pass.page.len() < self.page {
                for aggregate in self.committing(state) {
                    let slow_clock = self.has_two_clocks;
                    let to_come = Self::next_position(state, aggregate, slow_clock);
                    let ahead = pass.read_to.is_none_or(|read_to| to_come > read_to);
                    if ahead && next.is_none_or(|next| to_come < next) {
                        actions.push(Action::PassBy(relay, to_come));
                    }
                }
                if next.is_some() {
                    actions.push(Action::Read(relay));
                }
            }
            if !pass.page.is_empty() {
                actions.push(Action::Take(relay));
            } else if next.is_none() {
                actions.push(Action::End(relay));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let with = |state: &mut State, relay: usize, act: &dyn Fn(&State, &mut Pass)| {
            let mut pass = state.relays[relay].take().expect("it works");
            act(state, &mut pass);
            state.relays[relay] = Some(pass);
        };
        match action {
            Action::Commit { aggregate, slow_clock, bell } => {
                self.commit(&mut state, aggregate, slow_clock, bell);
            }
            Action::RingAll => state.has_bell = true,
            Action::Begin(relay) => {
                state.has_bell = false;
                state.relays[relay] = Some(Self::begin());
            }
            Action::BeginAfter(relay, position) => {
                state.has_bell = false;
                let began_after = Some(position);
                let pass = Pass { began_after, read_to: began_after, ..Self::begin() };
                state.relays[relay] = Some(pass);
            }
            Action::PassBy(relay, position) => {
                with(&mut state, relay, &|_, pass| pass.read_to = Some(position));
            }
            Action::Read(relay) => with(&mut state, relay, &Self::read),
            Action::Take(relay) => with(&mut state, relay, &|state, pass| self.take(state, pass)),
            Action::Publish(relay, position, topic, outcome) => {
                self.publish(&mut state, relay, position, topic, outcome);
            }
            Action::Judge(relay) => with(&mut state, relay, &|_, pass| self.judge(pass)),
            Action::Write(relay, write) => Self::write(&mut state, relay, &write),
            Action::End(relay) | Action::Crash(relay) => state.relays[relay] = None,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("in order", |_, state: &State| !state.out_of_order),
            Property::always("never lost", |model: &Self, state: &State| {
                model.committed(state).all(|(topic, aggregate, seq)| {
                    let mut rows = state.outbox.iter();
                    let waits = rows.any(|(row, _)| (row.1, row.2) == (aggregate, seq));
                    waits || state.seen.contains(&(topic, aggregate, seq))
                })
            }),
            Property::always("drains", |model: &Self, state: &State| model.drains(state)),
        ]
    }
}

/// Every interleaving within these bounds.
fn check(name: &str, protocol: Protocol) {
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    println!("{name}: {} states, all of them right", checker.unique_state_count());
    checker.assert_properties();
}

/// Something comes out of order, and this is how.
fn find(name: &str, careless: Protocol) {
    let checker = careless.checker().threads(2).spawn_bfs().join();
    let discovery = checker.discovery("in order").expect("something comes out of order");
    println!("{name}: found {:?}", discovery.into_actions());
}

const CAREFUL: Protocol = Protocol {
    aggregates: &[],
    relays: 1,
    page: 2,
    has_two_clocks: false,
    checks_predecessor: true,
    deletes_in_order: true,
};
const THREE_ROWS: &[&[&[Topic]]] = &[&[&[0], &[0], &[0]]];
const TWO_AGGREGATES: &[&[&[Topic]]] = &[&[&[0], &[0]], &[&[0], &[0]]];
/// What is published in the middle goes while what came before it cannot.
const TWO_TOPICS: &[&[&[Topic]]] = &[&[&[0], &[1], &[0]]];
const BOTH_TOPICS: &[&[&[Topic]]] = &[&[&[0, 1], &[0, 1]]];

#[test]
fn two_relays_on_one_aggregate() {
    check("three rows, two relays", Protocol { aggregates: THREE_ROWS, relays: 2, ..CAREFUL });
}

#[test]
fn two_aggregates_by_two_clocks() {
    let protocol = Protocol { aggregates: TWO_AGGREGATES, has_two_clocks: true, ..CAREFUL };
    check("two aggregates, two clocks, one relay", protocol);
}

#[test]
fn two_topics() {
    check("two topics, two relays", Protocol { aggregates: TWO_TOPICS, relays: 2, ..CAREFUL });
    check("rows for both topics", Protocol { aggregates: BOTH_TOPICS, relays: 2, ..CAREFUL });
}

#[test]
fn without_the_predecessor_check_the_model_finds_the_bug() {
    let careless = Protocol { checks_predecessor: false, ..CAREFUL };
    find("no predecessor check", Protocol { aggregates: THREE_ROWS, ..careless });
}

#[test]
fn if_rows_went_before_what_came_before_them_the_model_finds_the_bug() {
    let careless = Protocol { deletes_in_order: false, relays: 2, ..CAREFUL };
    find("rows deleted out of order", Protocol { aggregates: TWO_TOPICS, ..careless });
}
