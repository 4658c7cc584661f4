//! Plays the parties and the workers of many deals at once, as they are: each message may come twice,
//! late, or too early, and some were never sent by whom they name.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use domain::deal::Deal;
use domain::ids::DealId;
use domain::money::Nano;
use domain::state::Status;
use platform::{clock, signature};
use serde_json::json;
use testbed::deals::{ADVERTISER, OPERATOR, OWNER, PRICE};
use testbed::deployed::{Deployed, PARTITIONS, Queued, fresh_deal};
use testbed::records::{self, Deposit, Record, SECRET, TOPIC, WATCHER, kafka_event};
use testbed::{programs, story};

use super::fate::Fate;

const DAY_SECS: u32 = 24 * 3600;
/// How long the retries of what came too early may take.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Play<'a> {
    pub stack: &'a Deployed,
    pub deals: Vec<(DealId, Fate)>,
    pub commands: usize,
    pub records: usize,
}

/// Of a deal's records all go to one partition, as their key makes them.
pub fn partition(record: &Record) -> i32 {
    let sum: u32 = record.key.iter().flat_map(|key| key.bytes()).map(u32::from).sum();
    i32::try_from(sum).unwrap_or_default() % PARTITIONS
}

impl<'a> Play<'a> {
    pub fn new(stack: &'a Deployed, deals: u32) -> Self {
        let deals = (0..deals).map(|number| (fresh_deal(number), Fate::of(number))).collect();
        Self { stack, deals, commands: 0, records: 0 }
    }

    fn of(&self, picked: impl Fn(Fate) -> bool) -> impl Iterator<Item = (DealId, Fate)> {
        self.deals.iter().copied().filter(move |(_, fate)| picked(*fate))
    }

    /// The deals as they stand.
    pub async fn standing(&self) -> HashMap<DealId, Deal> {
        let ours: std::collections::HashSet<DealId> =
            self.deals.iter().map(|deal| deal.0).collect();
        let all = self.stack.bed.deals().await.into_iter();
        all.filter(|deal| ours.contains(&deal.id)).map(|deal| (deal.id, deal)).collect()
    }

    /// A party's command to each deal of some fates; every tenth is sent twice.
    pub async fn command(
        &mut self,
        what: &str,
        who: &str,
        picked: impl Fn(Fate) -> bool,
    ) -> Result<(), String> {
        let standing = self.standing().await;
        let actor = if who == "owner" { OWNER } else { ADVERTISER };
        let mut commands = Vec::new();
        for (deal, _) in self.of(picked) {
            let version = standing.get(&deal).map_or(0, |deal| deal.version);
            let id = format!("{deal}-{what}-{who}");
            let payload = story::command_payload(what, "")?;
            let body = records::command(&id, what, deal, actor.0, version, payload);
            commands.push(body);
        }
        let again = commands.iter().step_by(10).cloned().collect::<Vec<_>>();
        let all = commands.into_iter().chain(again).map(Queued::by_party).collect::<Vec<_>>();
        self.send_commands(&format!("{what}, by the {who}"), &all).await
    }

    /// The watcher's command that names each deal's deposit address.
    pub async fn addresses(&mut self) -> Result<(), String> {
        let command = |deal: DealId| story::address_ready(&format!("{deal}-address"), deal);
        let all = self.of(Fate::any).map(|(deal, _)| Queued::by_worker(command(deal), WATCHER));
        let all = all.collect::<Vec<_>>();
        self.send_commands("deposit_address_ready, by the watcher", &all).await
    }

    async fn send_commands(&mut self, name: &str, commands: &[Queued]) -> Result<(), String> {
        let begun = Instant::now();
        self.stack.queue_up(commands).await?;
        self.stack.until_read().await?;
        self.commands += commands.len();
        progress("commands", commands.len(), begun, name);
        Ok(())
    }

    /// Reports, and all of them again from the other end.
    pub async fn report(&mut self, name: &str, reports: &[Record]) -> Result<(), String> {
        let begun = Instant::now();
        let all = reports.iter().chain(reports.iter().rev());
        futures::future::join_all(all.map(|record| self.stack.report(partition(record), record)))
            .await;
        self.stack.until_read().await?;
        self.records += 2 * reports.len();
        progress("records", 2 * reports.len(), begun, name);
        Ok(())
    }

    /// A worker is killed half-way. It does not know how far it came, and begins again.
    pub async fn by_a_worker_that_dies(
        &mut self,
        root: &Path,
        name: &str,
        reports: &[Record],
    ) -> Result<(), String> {
        let begun = Instant::now();
        let file = root.join(".local/worker.json");
        std::fs::write(&file, kafka_event(reports).to_string())
            .map_err(|error| error.to_string())?;
        let program = programs::build(root, "xtask").await?;
        let start = || {
            let mut command = tokio::process::Command::new(&program);
            command.arg("worker").arg(&self.stack.broker.brokers).arg(&file);
            command.stdin(Stdio::null()).kill_on_drop(true);
            command.spawn().map_err(|error| format!("the worker does not start: {error}"))
        };
        let before = self.stack.broker.end_of(TOPIC, PARTITIONS);
        let sent = || self.stack.broker.end_of(TOPIC, PARTITIONS) - before;
        let half = i64::try_from(reports.len() / 2).unwrap_or_default();
        let mut worker = start()?;
        while sent() < half && worker.try_wait().is_ok_and(|ended| ended.is_none()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        worker.kill().await.map_err(|error| error.to_string())?;
        println!("  the watcher is killed after {} of {} reports", sent(), reports.len());
        let status = start()?.wait().await.map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("the worker ended with {status}"));
        }
        self.stack.until_read().await?;
        let all = usize::try_from(sent()).unwrap_or_default();
        self.records += all;
        progress("records", all, begun, name);
        Ok(())
    }

    pub fn deposits_of(&self, wanted: Fate) -> Vec<Record> {
        self.of(|fate| fate == wanted).flat_map(|(deal, fate)| deposits(deal, fate)).collect()
    }

    /// Every deposit, and what else is on the topic: forgeries, garbage, claims that cannot be.
    pub fn deposits(&self) -> Vec<Record> {
        let is_paid_now = |fate| !matches!(fate, Fate::NeverPaid | Fate::PaidTooEarly);
        let mut reports: Vec<Record> =
            self.of(is_paid_now).flat_map(|(deal, fate)| deposits(deal, fate)).collect();
        let unpaid = self.of(|fate| fate == Fate::NeverPaid).next().expect("a deal of twenty").0;
        let paid = self.of(|fate| fate == Fate::PaidOut).next().expect("nine deals of twenty").0;
        let now = clock::now();
        let unpaid_for = Deposit::new(unpaid, 0).part(1).record().at(now);
        let true_signature = signature::sign_v1(SECRET.as_bytes(), &unpaid_for.body);
        let (now_ms, hour_ms) = (now.as_millis(), 3_600_000);
        let trouble = [
            unpaid_for.clone().signed_by(WATCHER, &"00".repeat(32), now_ms),
            // Recorded once, and replayed by somebody an hour later.
            unpaid_for.signed_by(WATCHER, &true_signature, now_ms - hour_ms),
            Record::new(b"{\"event_type\": \"DEPOSIT_CONF".to_vec()).at(now),
            // A transaction that is on the books, claimed with another amount.
            Deposit::new(paid, 0).part(1).amount(2 * PRICE.get()).record().at(now),
            Deposit::new(fresh_deal(u32::MAX), 0).part(1).record().at(now),
        ];
        let step = reports.len() / 6;
        for (number, record) in (1..).zip(trouble) {
            reports.insert(number * step + number, record);
        }
        reports
    }

    /// Posts that appear, and attempts that fail.
    pub fn posts(&self) -> Vec<Record> {
        let now = clock::now();
        let mut reports = Vec::new();
        for (deal, fate) in self.of(Fate::is_published) {
            let failures = match fate {
                Fate::FailsTwice => 2,
                Fate::FailsThrice => 3,
                _ => 0,
            };
            let failed = |attempt| records::failed_publication(deal, Some(attempt)).at(now);
            reports.extend((1..=failures).map(failed));
            if fate != Fate::FailsThrice {
                reports.push(records::published(deal, now).at(now));
            }
        }
        reports
    }

    pub fn checks(&self) -> Vec<Record> {
        let picked = |fate: Fate| fate.is_published() && fate != Fate::FailsThrice;
        let check = |(deal, fate)| records::check(deal, 1, fate != Fate::Deleted).at(clock::now());
        self.of(picked).map(check).collect()
    }

    /// Recorded a day from now: the topics take the workers' word for the time.
    pub fn verdicts(&self) -> Vec<Record> {
        let later = clock::now().plus_secs(DAY_SECS + 60);
        let verdict = |(deal, fate)| match fate {
            Fate::Edited => records::edited_verification(deal).at(later),
            _ => records::final_verification(deal).at(later),
        };
        self.of(Fate::has_verdict).map(verdict).collect()
    }

    /// Waits until what came too early was taken up again.
    pub async fn retried(&self) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            let standing = self.standing().await;
            let waits = |(deal, fate): &(DealId, Fate)| {
                *fate == Fate::PaidTooEarly
                    && standing.get(deal).map(|deal| deal.status) != Some(Status::Funded)
            };
            let left = self.deals.iter().filter(|deal| waits(deal)).count();
            if left == 0 {
                let early = self.of(|fate| fate == Fate::PaidTooEarly).count();
                progress("letters", early, begun, "deposits that waited in the retry queue");
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("{left} early deposits were never taken up; see .local/*.log"));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// The operator decides, over HTTP, as the backend calls it.
    pub async fn resolve(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        let standing = self.standing().await;
        let disputes: Vec<_> = self.of(|fate| fate == Fate::Edited).collect();
        for (deal, _) in &disputes {
            let version = standing.get(deal).map_or(0, |deal| deal.version);
            let id = format!("{deal}-resolve");
            let payload = json!({"reason": "the post was edited"});
            let what = "resolve_for_advertiser";
            let body = records::command(&id, what, *deal, OPERATOR.0, version, payload);
            let (status, answer) = self.stack.call(true, &body).await?;
            if status != 200 {
                return Err(format!("the operator was answered HTTP {status} {answer}"));
            }
        }
        self.commands += disputes.len();
        progress("commands", disputes.len(), begun, "disputes resolved by the operator, over HTTP");
        Ok(())
    }

    /// What the executors report: each payout and refund that was ordered. And one that was not.
    pub async fn settlements(&self) -> Vec<Record> {
        let mut reports = Vec::new();
        for deal in self.standing().await.into_values() {
            if deal.payable > Nano::ZERO {
                reports.push(records::payout_by(deal.id, records::tx(deal.id, "payout")));
            }
            for order in deal.refunds.iter().filter(|order| order.settled.is_none()) {
                let tx = records::tx(deal.id, &format!("refund {}", order.number));
                reports.push(records::refund_by(deal.id, tx, order.amount.get()));
            }
        }
        let unpaid = self.of(|fate| fate == Fate::NeverPaid).next().expect("a deal of twenty").0;
        reports.push(records::payout_by(unpaid, records::tx(unpaid, "payout")));
        let now = clock::now();
        reports.into_iter().map(|record| record.at(now)).collect()
    }
}

/// How a deal is paid.
fn deposits(deal: DealId, fate: Fate) -> Vec<Record> {
    let price = PRICE.get();
    let deposit = |part: u32, amount: i64| Deposit::new(deal, 0).part(part).amount(amount);
    let reports = match fate {
        Fate::Halves => vec![deposit(1, price / 2), deposit(2, price / 2)],
        Fate::Surplus => vec![deposit(1, price / 2 * 3)],
        Fate::Unconfirmed => {
            let mut early = deposit(1, price);
            early.confirmations = json!(1);
            vec![early, deposit(1, price)]
        }
        _ => vec![deposit(1, price)],
    };
    reports.into_iter().map(|report| report.record().at(clock::now())).collect()
}

fn progress(kind: &str, count: usize, begun: Instant, name: &str) {
    let secs = begun.elapsed().as_secs_f64();
    println!("  {count:>5} {kind:<9} {secs:>5.1} s  {name}");
}
