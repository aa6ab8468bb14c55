//! A running server and a plain HTTP client over a TCP socket.

use crate::scripted::{Behaviour, Bytes, Scripted};
use serde_json::Value;
use server::{Server, ServerError, ServerOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A server over a scripted engine, on a runtime of its own.
pub struct Running {
    pub address: SocketAddr,
    pub engine: Arc<Scripted>,
    shutdown: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<Result<(), ServerError>>>,
}

pub fn options() -> ServerOptions {
    ServerOptions { port: 0, model_names: vec!["m".into(), "alias".into()], ..ServerOptions::default() }
}

pub fn start(behaviour: Behaviour) -> Running {
    start_with(behaviour, options(), Bytes::new())
}

/// A server whose every answer is this script.
pub fn saying(script: &[u32]) -> Running {
    let script = script.to_vec();
    start(Behaviour { script: Box::new(move |_| script.clone()), ..Behaviour::default() })
}

pub fn start_with(behaviour: Behaviour, options: ServerOptions, text: Bytes) -> Running {
    let engine = Scripted::start(behaviour);
    let server = Server::bind(options, engine.clone(), Arc::new(text)).unwrap();
    let address = server.address();
    let (shutdown, asked) = tokio::sync::oneshot::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(server.run(async {
            let _ = asked.await;
        }))
    });
    Running { address, engine, shutdown: Some(shutdown), thread: Some(thread) }
}

impl Running {
    pub fn ask_to_end(&mut self) {
        if let Some(shutdown) = self.shutdown.take() {
            let _ = shutdown.send(());
        }
    }

    pub fn end(&mut self) -> Result<(), ServerError> {
        self.ask_to_end();
        self.thread.take().unwrap().join().unwrap()
    }

    pub fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        read(open(self.address, method, path, headers, body))
    }

    pub fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "", b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, JSON, body.to_string().as_bytes())
    }

    pub fn complete(&self, body: Value) -> Answer {
        self.post("/v1/completions", &body)
    }

    pub fn chat(&self, body: Value) -> Answer {
        self.post("/v1/chat/completions", &body)
    }

    /// Waits until the engine has nothing to do.
    pub fn wait_idle(&self) {
        use server::Backend;
        let idle = || {
            let stats = self.engine.stats();
            stats.running == 0 && stats.waiting == 0
        };
        wait("the engine is idle", idle);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = self.end();
        }
    }
}

pub const JSON: &str = "content-type: application/json\r\n";

pub fn wait(what: &str, done: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(5);
    while !done() {
        assert!(Instant::now() < limit, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sends a request on a connection of its own.
pub fn open(address: SocketAddr, method: &str, path: &str, headers: &str, body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    // The server may answer and close before it has read everything (413).
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(body);
    stream
}

/// A whole response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    head: String,
    pub body: Vec<u8>,
}

pub fn read(stream: TcpStream) -> Answer {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    loop {
        let mut line = String::new();
        assert!(reader.read_line(&mut line).unwrap() > 0, "no response");
        if line == "\r\n" {
            break;
        }
        head.push_str(&line);
    }
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut answer = Answer { status, head, body: Vec::new() };
    if answer.header("transfer-encoding").is_none() {
        let _ = reader.read_to_end(&mut answer.body);
        return answer;
    }
    loop {
        let mut size = String::new();
        if reader.read_line(&mut size).unwrap_or(0) == 0 {
            return answer;
        }
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        reader.read_exact(&mut chunk).unwrap();
        answer.body.extend_from_slice(&chunk[..size]);
        if size == 0 {
            return answer;
        }
    }
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().skip(1).filter_map(|l| l.split_once(": "));
        lines.find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v)
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// Of a 200.
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// The error of this status.
    pub fn error(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        let error = self.json()["error"].clone();
        assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
        assert!(error.get("param").is_some() && error.get("code").is_some(), "{error}");
        error
    }

    /// The data of a stream's events; whether `[DONE]` came last.
    pub fn events(&self) -> (Vec<Value>, bool) {
        assert_eq!(self.status, 200, "{}", self.text());
        assert!(self.header("content-type").unwrap().starts_with("text/event-stream"));
        let mut events = Vec::new();
        let mut done = false;
        for block in self.text().split("\n\n").filter(|b| !b.is_empty() && !b.starts_with(':')) {
            assert!(!done, "after [DONE]: {block}");
            let data = block.strip_prefix("data: ").unwrap_or_else(|| panic!("{block:?}"));
            if data == "[DONE]" {
                done = true;
            } else {
                events.push(serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {data}")));
            }
        }
        (events, done)
    }
}

/// All text of choice `index` in a stream's events.
pub fn streamed(events: &[Value], index: u64) -> String {
    let choices = events.iter().flat_map(|e| e["choices"].as_array().unwrap());
    let mine = choices.filter(|c| c["index"] == index);
    mine.filter_map(|c| c["text"].as_str().or(c["delta"]["content"].as_str())).collect()
}
