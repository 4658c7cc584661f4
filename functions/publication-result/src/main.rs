//! Wires `publication-result` to its sources; everything else is in the library and the platform.

use platform::catalog::PUBLICATION_RESULT;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    platform::results::run(&PUBLICATION_RESULT, publication_result::decide).await
}
