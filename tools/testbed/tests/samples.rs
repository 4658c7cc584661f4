//! The files in `events/` are in step with the code, and each does what its page says.

use testbed::bed::Bed;
use testbed::{deals, functions, samples};

#[tokio::test]
async fn every_sample_is_in_step_and_does_what_it_says() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let mut seen = 0;
    for sample in samples::all() {
        let file = std::fs::read_to_string(format!("{root}/{}", sample.path()));
        assert_eq!(file.ok(), Some(sample.file()), "{}: run `make events`", sample.path());
        let bed = Bed::new(sample.function).await;
        samples::seed(&bed, sample.function, &sample.event).await;
        let about_it = samples::deals_of(&sample.event).contains(&sample.deal);
        seen += usize::from(about_it);
        match sample.ends_in {
            // The sample is about no deal; then this one stays as it was.
            Some(status) if !about_it && bed.deal(sample.deal).await.is_none() => {
                deals::open(&bed.store, sample.deal, status).await;
            }
            _ => {}
        }
        let answer = functions::invoke(&bed, sample.function, sample.event.clone()).await;
        assert_eq!(answer.expect("an answer"), sample.answer, "{}", sample.path());
        if (sample.function, sample.case) == ("outbox-relay", "bell") {
            let rows = bed.rows(&bed.config.tables.outbox).await;
            let waits = rows.iter().any(|row| row["aggregate_id"] == sample.deal.to_string());
            assert!(!waits, "what it has to say was published");
        }
        match sample.ends_in {
            None => assert!(bed.deal(sample.deal).await.is_none(), "{}", sample.path()),
            Some(status) => {
                assert_eq!(bed.sound_deal(sample.deal).await.status, status, "{}", sample.path());
            }
        }
    }
    println!("{} samples, {seen} of them about a deal", samples::all().len());
    let page = std::fs::read_to_string(format!("{root}/events/README.md"));
    assert_eq!(page.ok(), Some(samples::page()), "run `make events`");
}
