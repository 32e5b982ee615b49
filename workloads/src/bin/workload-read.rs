//! Benchmark: random 4 KiB reads of a file in the page cache. The result shows the cost that a ring
//! adds to the cost of copying a block.
//!
//! `workload-read [--batch N] [--by ring|pread|preadv2] [--best 0|1] [--milliseconds N] [--folder
//! DIR]`
//!
//! `--best 1` makes the ring with the setup flags that are fastest on the kernel, and registers the
//! file and the buffers.
//!
//! `preadv2` is called with RWF_NOWAIT, as usring's rings do: no other system call reads a file
//! without ever waiting.

use fastrand::Rng;
use io_uring::{IoUring, opcode, squeue, types};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use workloads::options::{self, Declared, Options, option};
use workloads::site::{self, GETEVENTS, Site};
use workloads::stopwatch;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 4096;

const OPTIONS: &[Declared] = &[
    option("batch", "32", "Reads per enter"),
    option("by", "ring", "How to read: ring, pread or preadv2"),
    option("best", "0", "1: set the ring up in the kernel's fastest way"),
    option("folder", "", "Folder of the file; empty: the temporary one"),
];

fn main() -> ExitCode {
    options::run(OPTIONS, workload)
}

fn workload(options: &Options) -> Result<(), String> {
    let batch: u32 = options.value("batch")?;
    let by: String = options.value("by")?;
    let span = options.span()?;
    let folder: PathBuf = options.value("folder")?;
    let folder = if folder.as_os_str().is_empty() { std::env::temp_dir() } else { folder };
    stopwatch::pin();
    let file = make_file(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    match by.as_str() {
        "ring" => by_ring(&file, batch, options.flag("best")?, span),
        "pread" => by_call(span, |buffer, offset| file.read_at(buffer, offset)),
        "preadv2" => by_call(span, |buffer, offset| read_without_waiting(&file, buffer, offset)),
        other => Err(format!("--by cannot be {other}")),
    }
}

/// Makes an unnamed file and writes it, so that all of it is in the page cache. Each block begins
/// with its number.
fn make_file(folder: &Path) -> std::io::Result<File> {
    let path = folder.join(format!("usring-workload-{}", std::process::id()));
    let mut file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    for block in 0..BLOCKS {
        let mut bytes = [0; BLOCK];
        bytes[..8].copy_from_slice(&block.to_le_bytes());
        file.write_all(&bytes)?;
    }
    Ok(file)
}

fn first_bytes(bytes: &[u8]) -> u64 {
    bytes[..8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// How requests name the file and the buffers.
#[derive(Clone, Copy)]
enum Target {
    File(types::Fd),
    /// By their indices: both are registered.
    Registered,
}

impl Target {
    fn register(ring: &IoUring, file: &File, buffers: &mut [[u8; BLOCK]]) -> Result<Target, String> {
        let vector = |buffer: &mut [u8; BLOCK]| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: BLOCK };
        let vectors: Vec<_> = buffers.iter_mut().map(vector).collect();
        // SAFETY: the buffers live as long as the ring.
        let registered = unsafe { ring.submitter().register_buffers(&vectors) };
        registered
            .and_then(|()| ring.submitter().register_files(&[file.as_raw_fd()]))
            .map_err(|why| why.to_string())?;
        Ok(Target::Registered)
    }

    #[inline]
    fn read(self, index: usize, buffer: &mut [u8; BLOCK], offset: u64) -> squeue::Entry {
        let (address, length) = (buffer.as_mut_ptr(), BLOCK as u32);
        match self {
            Target::File(file) => opcode::Read::new(file, address, length).offset(offset).build(),
            Target::Registered => {
                opcode::ReadFixed::new(types::Fixed(0), address, length, index as u16).offset(offset).build()
            }
        }
    }
}

fn by_ring(file: &File, batch: u32, best: bool, span: Duration) -> Result<(), String> {
    let mut buffers = vec![[0u8; BLOCK]; batch as usize];
    let (mut ring, entrance) = site::ring(batch, best)?;
    let target = match best {
        true => Target::register(&ring, file, &mut buffers)?,
        false => Target::File(types::Fd(file.as_raw_fd())),
    };
    let (_, mut submission, mut completion) = ring.split();
    let mut random = Rng::with_seed(1);
    stopwatch::print(span, || {
        for (index, buffer) in buffers.iter_mut().enumerate() {
            let block = random.u64(..BLOCKS);
            let read = target.read(index, buffer, block * BLOCK as u64);
            let read = read.user_data(block << 32 | index as u64);
            // SAFETY: the buffer lives as long as the ring, and is read only after the request's
            // completion.
            unsafe { submission.push(&read) }.map_err(|_| "the SQ is full")?;
        }
        submission.sync();
        let submitted = entrance.enter(Site::Inline, batch, batch, GETEVENTS);
        completion.sync();
        let mut right = 0;
        for entry in completion.by_ref() {
            let (block, index) = (entry.user_data() >> 32, entry.user_data() as u32 as usize);
            right += u32::from(entry.result() == BLOCK as i32 && first_bytes(&buffers[index]) == block);
        }
        submission.sync();
        if submitted == i64::from(batch) && right == batch {
            Ok(u64::from(batch))
        } else {
            Err(format!("of {batch} reads {submitted} were submitted and {right} read the right block"))
        }
    })
}

fn by_call(span: Duration, read: impl Fn(&mut [u8], u64) -> std::io::Result<usize>) -> Result<(), String> {
    let mut buffer = [0; BLOCK];
    let mut random = Rng::with_seed(1);
    stopwatch::print(span, || {
        let block = random.u64(..BLOCKS);
        let length = read(&mut buffer, block * BLOCK as u64).map_err(|error| error.to_string())?;
        let right = length == BLOCK && first_bytes(&buffer) == block;
        if right { Ok(1) } else { Err("a block was not what it should be".into()) }
    })
}

fn read_without_waiting(file: &File, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: the only vector covers a whole buffer that nothing else uses.
    let length = unsafe { libc::preadv2(file.as_raw_fd(), &vector, 1, offset as i64, libc::RWF_NOWAIT) };
    usize::try_from(length).map_err(|_| std::io::Error::last_os_error())
}
