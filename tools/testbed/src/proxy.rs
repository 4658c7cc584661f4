//! Stands between a process and its DynamoDB, counts its calls, and lets a test act right before or
//! right after one of them.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// When something is to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The call has not reached the engine, and never will.
    Before,
    /// The engine has done it, and the answer never arrives.
    After,
}

struct Trap {
    calls: u32,
    set: Option<(u32, Moment)>,
    act: Arc<dyn Fn() + Send + Sync>,
    caught: Option<String>,
}

pub struct Proxy {
    pub url: String,
    trap: Arc<Mutex<Trap>>,
}

impl Proxy {
    /// `act` is what happens to the caller.
    pub async fn start(engine_url: &str, act: impl Fn() + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let engine = engine_url.trim_start_matches("http://").to_owned();
        let trap = Trap { calls: 0, set: None, act: Arc::new(act), caught: None };
        let trap = Arc::new(Mutex::new(trap));
        let shared = trap.clone();
        tokio::spawn(async move {
            while let Ok((caller, _)) = listener.accept().await {
                let (engine, trap) = (engine.clone(), shared.clone());
                tokio::spawn(async move {
                    // A caller that is gone is no news here.
                    let _ = serve(caller, &engine, &trap).await;
                });
            }
        });
        Self { url, trap }
    }

    /// From now on, at the call with this number.
    pub fn set(&self, call: u32, moment: Moment) {
        let mut trap = self.trap.lock().expect("no panic under it");
        (trap.calls, trap.set, trap.caught) = (0, Some((call, moment)), None);
    }

    pub fn clear(&self) {
        self.trap.lock().expect("no panic under it").set = None;
    }

    /// The operation that it happened at, if it did.
    pub fn caught(&self) -> Option<String> {
        self.trap.lock().expect("no panic under it").caught.clone()
    }
}

/// Passes requests and answers on, one after the other, as long as both sides want to.
async fn serve(caller: TcpStream, engine: &str, trap: &Mutex<Trap>) -> std::io::Result<()> {
    let mut caller = BufReader::new(caller);
    let mut engine = BufReader::new(TcpStream::connect(engine).await?);
    loop {
        let request = read_message(&mut caller).await?;
        if act(trap, &request, Moment::Before) {
            return Ok(());
        }
        engine.get_mut().write_all(&request).await?;
        let answer = read_message(&mut engine).await?;
        if act(trap, &request, Moment::After) {
            return Ok(());
        }
        caller.get_mut().write_all(&answer).await?;
    }
}

fn act(trap: &Mutex<Trap>, request: &[u8], moment: Moment) -> bool {
    let mut trap = trap.lock().expect("no panic under it");
    trap.calls += u32::from(moment == Moment::Before);
    if trap.set != Some((trap.calls, moment)) {
        return false;
    }
    let head = String::from_utf8_lossy(request).into_owned();
    let target = head.lines().find_map(|line| line.split_once("DynamoDB_20120810."));
    trap.caught = Some(target.map_or(String::new(), |(_, operation)| operation.to_owned()));
    trap.set = None;
    (trap.act)();
    true
}

/// A whole HTTP/1.1 message whose length its head gives.
async fn read_message(from: &mut BufReader<TcpStream>) -> std::io::Result<Vec<u8>> {
    let mut message = Vec::new();
    while !message.ends_with(b"\r\n\r\n") {
        message.push(from.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&message).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let begun = message.len();
    message.resize(begun + length, 0);
    from.read_exact(&mut message[begun..]).await?;
    Ok(message)
}
