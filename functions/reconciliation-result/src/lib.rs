//! Decides what to file of a reconciliation's result: all of it, and an alert if any check failed.

use domain::filing::Filing;
use domain::message::{Kind, Message};
use domain::result::ReconciliationResult;

pub fn file(result: &ReconciliationResult) -> Filing {
    let failed: Vec<String> = result
        .checks
        .iter()
        .filter(|check| !check.passed)
        .map(|check| format!("{} {}", check.name, shown(&check.details)))
        .collect();
    let alert = || {
        let text = format!("reconciliation {}: FAIL in {}", result.trigger_id, failed.join("; "));
        Message::tell_operator(Kind::ReconciliationAlert, text)
    };
    Filing {
        key: result.key(),
        fingerprint: result.fingerprint(),
        event_type: ReconciliationResult::EVENT_TYPE,
        deal: None,
        took_effect: true,
        messages: if failed.is_empty() { Vec::new() } else { vec![alert()] },
        record: Some(result.clone()),
    }
}

/// A notification is read by a person; the row has the whole.
fn shown(details: &str) -> String {
    const SHOWN: usize = 500;
    let beginning: String = details.chars().take(SHOWN).collect();
    if beginning.len() < details.len() { format!("{beginning}…") } else { beginning }
}

#[cfg(test)]
mod tests {
    use domain::result::ReconciliationCheck;
    use domain::time::Timestamp;

    use super::*;

    fn result(statuses: &[(&str, bool)]) -> ReconciliationResult {
        let checks = statuses.iter().map(|(name, passed)| ReconciliationCheck {
            name: (*name).to_owned(),
            passed: *passed,
            details: "{\"diff_nano\":5}".to_owned(),
        });
        ReconciliationResult {
            trigger_id: "t-1".to_owned(),
            checks: checks.collect(),
            completed_at: Timestamp::from_millis(1),
        }
    }

    #[test]
    fn only_a_failed_check_alerts() {
        let quiet = file(&result(&[("LEDGER_BALANCE", true), ("LEDGER_VS_TON", true)]));
        assert_eq!((quiet.messages.len(), quiet.took_effect), (0, true));
        assert_eq!(quiet.key.as_str(), "recon:t-1");
        assert!(quiet.record.is_some());

        let loud = file(&result(&[("LEDGER_BALANCE", true), ("LEDGER_VS_TON", false)]));
        let [Message::Notification(alert)] = loud.messages.as_slice() else { panic!() };
        assert_eq!(alert.kind.name(), "RECONCILIATION_ALERT");
        assert!(alert.text.contains("LEDGER_VS_TON {\"diff_nano\":5}"), "{}", alert.text);
        assert!(!alert.text.contains("LEDGER_BALANCE"));
    }

    #[test]
    fn statuses_are_the_identity() {
        let pass = result(&[("LEDGER_BALANCE", true)]);
        let mut told_otherwise = pass.clone();
        told_otherwise.checks[0].details = "{}".to_owned();
        assert_eq!(file(&pass).fingerprint, file(&told_otherwise).fingerprint);
        assert_ne!(
            file(&pass).fingerprint,
            file(&result(&[("LEDGER_BALANCE", false)])).fingerprint
        );
    }
}
