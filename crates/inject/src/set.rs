//! The SET of a rule: the opcodes of rings, commands of libaio, and plain system calls that the
//! rule names.

use crate::calls::{self, CALLS, DESC, FILE, NET, RW, SYNC};
use usring_uapi::opcode;

/// How a call arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A request of a ring. The number of such a call is the request's opcode.
    Ring,
    /// A plain system call. Its number is the kernel's number.
    Call,
    /// An iocb of libaio. The number of such a call is the opcode of the io_uring request that does
    /// this iocb's work.
    Aio,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Ring, Kind::Call, Kind::Aio];

    /// Returns the word that limits a rule to this kind if it stands before the SET, as in
    /// `ring:read`.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Ring => "ring",
            Kind::Call => "call",
            Kind::Aio => "aio",
        }
    }
}

/// The classes of system calls that a SET may contain as `%NAME`: the name of each class, and its
/// bit in [`CALLS`].
const CLASSES: [(&str, u8); 6] =
    [("file", FILE), ("desc", DESC), ("net", NET), ("network", NET), ("sync", SYNC), ("rw", RW)];

/// Names of classes that a SET may also contain without `%`, as in strace.
const LEGACY: [&str; 3] = ["file", "desc", "network"];

/// Names of the commands of libaio, each with the opcode of the io_uring request that does the
/// command's work.
const COMMANDS: [(&str, u8); 11] = [
    ("read", opcode::READ),
    ("pread", opcode::READ),
    ("write", opcode::WRITE),
    ("pwrite", opcode::WRITE),
    ("readv", opcode::READV),
    ("preadv", opcode::READV),
    ("writev", opcode::WRITEV),
    ("pwritev", opcode::WRITEV),
    ("fsync", opcode::FSYNC),
    ("fdsync", opcode::FSYNC),
    ("poll_add", opcode::POLL_ADD),
];

/// A set of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallSet {
    ring: u64,
    aio: u64,
    calls: [u64; 8],
}

/// Error of a SET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameError<'a> {
    /// A name that no call and no class has.
    Unknown(&'a str),
    /// A name that no call of the rule's kind has, and no class with such a call. The calls with
    /// this name are of the kind `of`.
    OfOtherKind { name: &'a str, of: Kind },
}

impl CallSet {
    /// Parses a SET: names and classes, separated by commas, or `all` or `none`. A `!` in front
    /// means all calls but these. A `?` in front of a name allows it to be unknown. If `kind` is
    /// given, the set has members of this kind only, and each name without `?` must have some.
    pub fn parse<'a>(text: &'a str, kind: Option<Kind>) -> Result<CallSet, NameError<'a>> {
        let (negated, list) = match text.strip_prefix('!') {
            Some(list) => (true, list),
            None => (false, text),
        };
        let mut set = CallSet::default();
        for name in list.split(',') {
            let (optional, name) = match name.strip_prefix('?') {
                Some(name) => (true, name),
                None => (false, name),
            };
            match CallSet::of_name(name) {
                Some(named) => {
                    let is_missing = |kind| !named.is_empty() && named.of_kind(kind).is_empty();
                    if !optional && kind.is_some_and(is_missing) {
                        let of = Kind::ALL.into_iter().find(|other| !is_missing(*other)).unwrap_or(Kind::Ring);
                        return Err(NameError::OfOtherKind { name, of });
                    }
                    set = set.union(&named);
                }
                None if optional => {}
                None => return Err(NameError::Unknown(name)),
            }
        }
        if negated {
            set = CallSet::all().without(&set);
        }
        Ok(kind.map_or(set, |kind| set.of_kind(kind)))
    }

    fn of_name(name: &str) -> Option<CallSet> {
        match name {
            "all" => return Some(CallSet::all()),
            "none" => return Some(CallSet::default()),
            _ => {}
        }
        if let Some(class) = name.strip_prefix('%').or(LEGACY.iter().find(|legacy| **legacy == name).copied()) {
            let (_, bit) = CLASSES.iter().find(|(known, _)| *known == class)?;
            return Some(CallSet::of_class(*bit));
        }
        let mut set = CallSet::default();
        if let Some(index) = opcode::NAMES.iter().position(|known| *known == name) {
            set.ring |= 1 << index;
        }
        COMMANDS.iter().filter(|(known, _)| *known == name).for_each(|(_, opcode)| set.aio |= 1 << opcode);
        if let Some(call) = calls::by_name(name) {
            set.add_call(call.number);
        }
        (!set.is_empty()).then_some(set)
    }

    fn of_class(bit: u8) -> CallSet {
        let mut set = CallSet::default();
        let named = CALLS.iter().filter(|call| call.classes & bit != 0);
        named.for_each(|call| set.add_call(call.number));
        for opcode in 0..opcode::COUNT {
            if classes_of_opcode(opcode) & bit != 0 {
                set.ring |= 1 << opcode;
            }
        }
        set.aio = set.ring & CallSet::commands();
        set
    }

    fn commands() -> u64 {
        COMMANDS.iter().fold(0, |set, (_, opcode)| set | 1 << opcode)
    }

    /// Every call that can be named.
    pub fn all() -> CallSet {
        let mut set = CallSet { ring: (1 << opcode::COUNT) - 1, aio: CallSet::commands(), calls: [0; 8] };
        CALLS.iter().for_each(|call| set.add_call(call.number));
        set
    }

    /// Adds a plain call.
    pub fn add_call(&mut self, number: u32) {
        if let Some(word) = self.calls.get_mut(number as usize / 64) {
            *word |= 1 << (number % 64);
        }
    }

    /// Adds an opcode of rings, and the command of libaio that does the work of this opcode.
    pub fn add_opcode(&mut self, opcode: u8) {
        self.ring |= 1 << opcode;
        self.aio |= CallSet::commands() & 1 << opcode;
    }

    pub fn union(&self, other: &CallSet) -> CallSet {
        CallSet {
            ring: self.ring | other.ring,
            aio: self.aio | other.aio,
            calls: core::array::from_fn(|word| self.calls[word] | other.calls[word]),
        }
    }

    pub fn without(&self, other: &CallSet) -> CallSet {
        CallSet {
            ring: self.ring & !other.ring,
            aio: self.aio & !other.aio,
            calls: core::array::from_fn(|word| self.calls[word] & !other.calls[word]),
        }
    }

    pub fn intersection(&self, other: &CallSet) -> CallSet {
        self.without(&self.without(other))
    }

    /// Returns the calls of this kind.
    pub fn of_kind(&self, kind: Kind) -> CallSet {
        match kind {
            Kind::Ring => CallSet { ring: self.ring, ..Default::default() },
            Kind::Aio => CallSet { aio: self.aio, ..Default::default() },
            Kind::Call => CallSet { calls: self.calls, ..Default::default() },
        }
    }

    pub fn is_empty(&self) -> bool {
        *self == CallSet::default()
    }

    /// Returns whether the SET names any requests of rings or libaio.
    pub fn has_requests(&self) -> bool {
        self.ring | self.aio != 0
    }

    /// Returns the plain calls, a bit per number.
    pub fn calls(&self) -> [u64; 8] {
        self.calls
    }

    pub fn contains(&self, kind: Kind, number: u16) -> bool {
        let bit = 1u64.checked_shl(u32::from(number)).unwrap_or(0);
        match kind {
            Kind::Ring => self.ring & bit != 0,
            Kind::Aio => self.aio & bit != 0,
            Kind::Call => self.calls.get(usize::from(number / 64)).is_some_and(|word| word & 1 << (number % 64) != 0),
        }
    }

    /// Returns the members of a kind, in the order of their numbers.
    pub fn members(&self, kind: Kind) -> impl Iterator<Item = u16> + '_ {
        (0..512).filter(move |number| self.contains(kind, *number))
    }
}

/// Returns the name that a call has in a SET.
pub fn name_of(kind: Kind, number: u16) -> &'static str {
    match kind {
        Kind::Ring | Kind::Aio => opcode::NAMES.get(usize::from(number)).copied().unwrap_or("(unknown)"),
        Kind::Call => calls::by_number(number.into()).map_or("(unknown)", |call| call.name),
    }
}

/// Returns the classes of an opcode: those of the system call that does the opcode's work.
fn classes_of_opcode(index: usize) -> u8 {
    let Ok(number) = u8::try_from(index) else { return 0 };
    match number {
        opcode::READ | opcode::READV | opcode::READ_FIXED | opcode::READV_FIXED | opcode::READ_MULTISHOT => RW | DESC,
        opcode::WRITE | opcode::WRITEV | opcode::WRITE_FIXED | opcode::WRITEV_FIXED => RW | DESC,
        opcode::SPLICE | opcode::TEE => RW | DESC,
        opcode::SEND | opcode::SENDMSG | opcode::SEND_ZC | opcode::SENDMSG_ZC => RW | NET | DESC,
        opcode::RECV | opcode::RECVMSG | opcode::RECV_ZC => RW | NET | DESC,
        opcode::ACCEPT | opcode::CONNECT | opcode::SOCKET | opcode::BIND | opcode::LISTEN => NET | DESC,
        opcode::SHUTDOWN => NET | DESC,
        opcode::FSYNC | opcode::SYNC_FILE_RANGE => SYNC | DESC,
        opcode::OPENAT | opcode::OPENAT2 | opcode::STATX | opcode::UNLINKAT | opcode::RENAMEAT => FILE | DESC,
        opcode::MKDIRAT | opcode::SYMLINKAT | opcode::LINKAT => FILE | DESC,
        opcode::SETXATTR | opcode::GETXATTR => FILE,
        opcode::FSETXATTR | opcode::FGETXATTR | opcode::FTRUNCATE | opcode::FALLOCATE | opcode::CLOSE => DESC,
        opcode::FADVISE | opcode::POLL_ADD | opcode::EPOLL_CTL | opcode::EPOLL_WAIT | opcode::PIPE => DESC,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usring_uapi::general as linux;

    fn set(text: &str) -> CallSet {
        CallSet::parse(text, None).unwrap()
    }

    #[test]
    fn a_plain_name_means_the_opcode_the_command_and_the_system_call() {
        let read = set("read");
        assert!(read.contains(Kind::Ring, opcode::READ.into()));
        assert!(read.contains(Kind::Aio, opcode::READ.into()));
        assert!(read.contains(Kind::Call, linux::__NR_read as u16));
        assert!(!read.contains(Kind::Call, linux::__NR_write as u16));
    }

    #[test]
    fn a_kind_narrows_the_set() {
        let read = CallSet::parse("read,fsync", Some(Kind::Ring)).unwrap();
        assert_eq!(read.members(Kind::Ring).collect::<Vec<_>>(), [opcode::FSYNC.into(), opcode::READ.into()]);
        assert_eq!(read.members(Kind::Call).count() + read.members(Kind::Aio).count(), 0);
    }

    #[test]
    fn an_exclamation_mark_means_all_other_calls() {
        let others = set("!read,write");
        assert!(!others.contains(Kind::Ring, opcode::WRITE.into()));
        assert!(others.contains(Kind::Ring, opcode::NOP.into()));
        assert!(others.contains(Kind::Call, linux::__NR_fsync as u16));
        assert_eq!(others.union(&set("read,write")), CallSet::all());
        assert_eq!(set("!none"), CallSet::all());
    }

    #[test]
    fn classes_mean_what_they_mean_in_strace() {
        assert!(set("%file").contains(Kind::Call, linux::__NR_rename as u16));
        assert!(set("%file").contains(Kind::Ring, opcode::OPENAT.into()));
        assert!(!set("%file").contains(Kind::Call, linux::__NR_read as u16));
        assert_eq!(set("%net"), set("network"));
        assert_eq!(set("%sync").members(Kind::Ring).count(), 2);
        assert!(set("%rw").contains(Kind::Aio, opcode::READ.into()));
    }

    #[test]
    fn an_unknown_name_is_an_error_unless_it_is_optional() {
        assert_eq!(CallSet::parse("read,raed", None), Err(NameError::Unknown("raed")));
        assert_eq!(CallSet::parse("", None), Err(NameError::Unknown("")));
        assert_eq!(CallSet::parse("%nosuch", None), Err(NameError::Unknown("%nosuch")));
        assert!(set("?raed").is_empty());
    }
}
