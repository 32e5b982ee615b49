//! The command line of the echo server.

use io_uring::IoUring;
use std::io;

pub const HELP: &str = "\
An echo server on io_uring: it sends back what it receives, and answers PING of Redis's protocol by +PONG.

Usage: echo_server [OPTIONS]

  --port N           listen on 127.0.0.1:N; 0, which is the default, takes a free port. Either way the first
                     line printed is `listening on 127.0.0.1:PORT`
  --threads N        threads, each with a ring and a listening socket of its own, between which the kernel
                     distributes the connections (SO_REUSEPORT); 1 by default
  --mode MODE        when a ring's completions are brought to its thread:
                       defer    when it waits for them (DEFER_TASKRUN): the cheapest, and the default
                       coop     at its next system call (COOP_TASKRUN)
                       default  at once, by interrupting it
  --singleshot WHAT  ask anew for each `accept`, for each `receive`, or for `both`, instead of once
  --close-after N    close a connection once N bytes of it have come and are answered
  --entries N        of the submission queue (the completion queue has four times as many); 1024 by default
  --buffers N        buffers that the receives of a ring share, a power of two; 1024 by default
  --buffer-size N    bytes of each; 2048 by default
  --help

It ends at SIGTERM or SIGINT: all requests are cancelled and waited for, all connections closed, and a line
says what was done. The status is 1 if a request was never completed.

Try it, on the kernel's io_uring and on usring:
  echo_server --port 7777 &
  usring run --deny-kernel --stats -- echo_server --port 7778 &
  redis-benchmark -p 7778 -t ping_inline,ping_mbulk -c 50 -P 16
  echo hello | nc -N 127.0.0.1 7778

Small numbers show what else has to work: `--entries 4` lets the completion queue overflow, `--buffers 2`
lets receives run out of buffers, `ulimit -n 30` lets accepts run out of descriptors.
";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Default,
    Coop,
    Defer,
}

#[derive(Clone, Debug)]
pub struct Options {
    pub port: u16,
    pub threads: usize,
    pub mode: Mode,
    pub multishot_accept: bool,
    pub multishot_receive: bool,
    pub close_after: Option<u64>,
    pub entries: u32,
    pub buffers: u16,
    pub buffer_size: usize,
}

impl Options {
    /// Parses this process's arguments. Returns `None` if they ask for help.
    pub fn from_arguments() -> Result<Option<Options>, String> {
        let mut options = Options {
            port: 0,
            threads: 1,
            mode: Mode::Defer,
            multishot_accept: true,
            multishot_receive: true,
            close_after: None,
            entries: 1024,
            buffers: 1024,
            buffer_size: 2048,
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(name) = arguments.next() {
            if name == "--help" || name == "-h" {
                return Ok(None);
            }
            let value = arguments.next().ok_or_else(|| format!("{name} wants a value"))?;
            options.set(&name, &value).ok_or_else(|| format!("there is no {name} {value}"))?;
        }
        Ok(Some(options))
    }

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        let count = |range: std::ops::RangeInclusive<u32>| value.parse().ok().filter(|count| range.contains(count));
        match name {
            "--port" => self.port = value.parse().ok()?,
            "--threads" => self.threads = count(1..=1024)? as usize,
            "--mode" => {
                let modes = [("default", Mode::Default), ("coop", Mode::Coop), ("defer", Mode::Defer)];
                self.mode = modes.into_iter().find(|(name, _)| *name == value)?.1;
            }
            "--singleshot" => {
                let (accept, receive) = match value {
                    "accept" => (false, true),
                    "receive" => (true, false),
                    "both" => (false, false),
                    _ => return None,
                };
                (self.multishot_accept, self.multishot_receive) = (accept, receive);
            }
            "--close-after" => self.close_after = Some(value.parse().ok()?),
            "--entries" => self.entries = count(1..=1 << 14)?,
            "--buffers" => self.buffers = count(1..=1 << 15).filter(|count| count.is_power_of_two())? as u16,
            "--buffer-size" => self.buffer_size = count(1..=1 << 20)? as usize,
            _ => return None,
        }
        Some(())
    }

    pub fn ring(&self) -> io::Result<IoUring> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(self.entries * 4);
        match self.mode {
            Mode::Default => {}
            Mode::Coop => {
                builder.setup_coop_taskrun().setup_single_issuer();
            }
            Mode::Defer => {
                builder.setup_defer_taskrun().setup_single_issuer();
            }
        }
        builder.build(self.entries)
    }
}
