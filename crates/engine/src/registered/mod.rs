//! Files, buffers and settings that a program registers with a ring ahead of its requests.

pub(crate) mod buffer_group;
mod buffer_ring;
mod classic_buffers;
pub(crate) mod napi;
mod own_registrations;
pub(crate) mod program_files;
pub(crate) mod registered_buffers;
pub(crate) mod registered_files;
pub(crate) mod restrictions;

pub(crate) use own_registrations::OwnRegistrations;

/// Whether this process and the other processes of a shared ring see each other's registrations:
/// see `waiting::shared_registrations`.
#[derive(Default)]
pub(crate) struct RegistrationSharing {
    /// The other processes see this process's registrations, and this process sees those of the
    /// others.
    pub is_published: bool,
    /// Whether the ring's memory says that this process has registrations that other processes do
    /// not see.
    pub is_noted: bool,
    /// The count of changes of the shared registrations, as it was when this process last applied
    /// them.
    pub generation: u32,
    /// Numbers of the last deposits that this process has made or taken. A deposit (`sys::deposit`)
    /// passes files to other processes: the registered files, or the registered eventfd.
    pub files: u32,
    pub event: u32,
    /// Whether this process has registered or removed the eventfd, and other processes do not see
    /// the change yet.
    pub is_event_changed: bool,
}
