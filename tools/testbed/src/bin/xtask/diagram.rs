//! The state diagram and the table of moves, from the one table in the domain.

use domain::policy::Timeouts;
use domain::state::{Actor, Effect, MOVES, Status};

use crate::Made;

pub fn page() -> Made {
    let mut text = String::from(
        "# The states of a deal\n\n\
         Made by `make diagram` from `shared/domain/src/state.rs`; CI checks that it is in step.\n\n\
         ```mermaid\nstateDiagram-v2\n    [*] --> DRAFT : create\n",
    );
    for step in MOVES {
        text += &format!("    {} --> {} : {}\n", step.from, step.to, step.trigger);
    }
    for status in Status::ALL.into_iter().filter(|status| status.is_final()) {
        text += &format!("    {status} --> [*]\n");
    }
    text += "```\n\n| from | to | trigger | actor | side effects |\n|---|---|---|---|---|\n";
    for step in MOVES {
        let actors: Vec<_> = step.actors.iter().copied().map(Actor::name).collect();
        let effects: Vec<_> = step.effects.iter().copied().map(Effect::describe).collect();
        let effects = if effects.is_empty() { "none".to_owned() } else { effects.join(", ") };
        let (from, to, trigger) = (step.from, step.to, step.trigger);
        let actors = actors.join(", ");
        text += &format!("| {from} | {to} | `{trigger}` | {actors} | {effects} |\n");
    }
    text += "\nEvery move also appends a fact to the journal and publishes it on `deal.events`.\n\n\
             | state | default timeout, hours |\n|---|---|\n";
    let timeouts = Timeouts::default();
    for status in Status::ALL {
        if let Some(secs) = timeouts.secs(status) {
            text += &format!("| {status} | {} |\n", secs / 3600);
        }
    }
    Made { path: "docs/state-machine.md".to_owned(), text }
}
