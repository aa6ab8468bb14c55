//! One small GET of a server that is being measured.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer that is read.
const LONGEST: u64 = 1 << 20;

/// The body of `url` + `path`; `None` where nobody answers with status 200.
pub fn get(url: &str, path: &str) -> Option<String> {
    let (authority, prefix) = match url.strip_prefix("http://")?.split_once('/') {
        Some((authority, prefix)) => (authority, format!("/{prefix}")),
        None => (url.strip_prefix("http://")?, String::new()),
    };
    let has_port = authority.rsplit(':').next().is_some_and(|p| p.parse::<u16>().is_ok());
    let address = if has_port { authority.to_owned() } else { format!("{authority}:80") };
    let mut stream = TcpStream::connect_timeout(&address.to_socket_addrs().ok()?.next()?, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    // HTTP/1.0: the answer comes unchunked and ends with the connection.
    let request = format!("GET {prefix}{path} HTTP/1.0\r\nHost: {authority}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.take(LONGEST).read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    (head.split_whitespace().nth(1)? == "200").then(|| body.to_owned())
}
