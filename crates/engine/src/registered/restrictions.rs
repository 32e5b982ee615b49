//! REGISTER_RESTRICTIONS: which register calls and requests a program may make on a ring. The
//! restrictions take effect when the ring is enabled.

use alloc::boxed::Box;
use usring_ring::{Registrations, Rules};
use usring_sys::Errno;
use usring_sys::width;
use usring_uapi::opcode::COUNT;

/// Bytes of `struct io_uring_restriction`: kind, argument, reserved fields.
pub(crate) const RECORD_SIZE: u64 = 16;
const REGISTER_OP: u16 = 0;
const SQE_OP: u16 = 1;
const SQE_FLAGS_ALLOWED: u16 = 2;
const SQE_FLAGS_REQUIRED: u16 = 3;
/// Restrictions can name the opcodes of io_uring_register that are below this number.
const REGISTER_LIMIT: u8 = 64;

#[derive(Clone, Copy, Default)]
struct Allowed {
    register: u64,
    submit: [u64; 4],
    flags_allowed: u8,
    flags_required: u8,
}

#[derive(Default)]
pub(crate) struct Restrictions {
    rules: Option<Box<Allowed>>,
    in_force: bool,
}

/// Value of a word in the ring's memory that all processes of the ring read: the ring has
/// restrictions. The value 0 means that there are none.
const REGISTERED: u32 = 1;
const IN_FORCE: u32 = 2;

impl Restrictions {
    pub fn are_registered(&self) -> bool {
        self.rules.is_some()
    }

    /// Sets the restrictions that the program's records describe. Error: `EINVAL` if a record is
    /// invalid; then no restriction is set.
    pub fn register(&mut self, records: &[[u8; width::size(RECORD_SIZE)]]) -> Result<(), Errno> {
        let mut rules = Allowed::default();
        for record in records {
            let kind = u16::from_le_bytes([record[0], record[1]]);
            let argument = record[2];
            match kind {
                REGISTER_OP if argument < REGISTER_LIMIT => rules.register |= 1 << argument,
                SQE_OP if usize::from(argument) < COUNT => {
                    rules.submit[usize::from(argument) / 64] |= 1 << (argument % 64);
                }
                SQE_FLAGS_ALLOWED => rules.flags_allowed = argument,
                SQE_FLAGS_REQUIRED => rules.flags_required = argument,
                _ => return Err(Errno::EINVAL),
            }
        }
        self.rules = Some(Box::new(rules));
        Ok(())
    }

    /// Puts the restrictions into effect. Called when the ring is enabled.
    pub fn enforce(&mut self) {
        self.in_force = self.rules.is_some();
    }

    fn rules(&self) -> Option<&Allowed> {
        self.rules.as_deref().filter(|_| self.in_force)
    }

    #[inline]
    pub fn check_submission(&self, opcode: u8, flags: u8) -> Result<(), Errno> {
        if self.in_force { self.check_rules(opcode, flags) } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn check_rules(&self, opcode: u8, flags: u8) -> Result<(), Errno> {
        let Some(rules) = self.rules() else { return Ok(()) };
        let known = rules.submit[usize::from(opcode) / 64] & 1 << (opcode % 64) != 0;
        let required = flags & rules.flags_required == rules.flags_required;
        let allowed = flags & !(rules.flags_allowed | rules.flags_required) == 0;
        if known && required && allowed { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Publishes the restrictions for the other processes of the ring, if there are any.
    pub fn publish(&self, registrations: &Registrations) {
        let Some(rules) = self.rules.as_deref() else { return };
        let flags = u64::from(rules.flags_allowed) | u64::from(rules.flags_required) << 8;
        let [first, second, third, fourth] = rules.submit;
        let state = if self.in_force { IN_FORCE } else { REGISTERED };
        if registrations.restrictions().0 != state {
            registrations.set_restrictions(state, [rules.register, first, second, third, fourth, flags]);
            registrations.count_change();
        }
    }

    /// Takes over the restrictions that another process has registered or put into effect.
    pub fn follow(&mut self, registrations: &Registrations) {
        let (state, rules): (u32, Rules) = registrations.restrictions();
        if state == 0 {
            return;
        }
        let [register, submit @ .., flags] = rules;
        let rules =
            Allowed { register, submit, flags_allowed: width::byte(flags), flags_required: width::byte(flags >> 8) };
        self.rules = Some(Box::new(rules));
        self.in_force = state == IN_FORCE;
    }

    pub fn check_register(&self, opcode: u32) -> Result<(), Errno> {
        let Some(rules) = self.rules() else { return Ok(()) };
        let allowed = opcode < u32::from(REGISTER_LIMIT) && rules.register & 1 << opcode != 0;
        if allowed { Ok(()) } else { Err(Errno::EACCES) }
    }
}
