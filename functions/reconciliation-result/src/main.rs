//! Wires `reconciliation-result` to its sources; everything else is in the library and the platform.

use platform::catalog::RECONCILIATION_RESULT;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    platform::results::run_filing(&RECONCILIATION_RESULT, reconciliation_result::file).await
}
