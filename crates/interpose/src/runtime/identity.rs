//! The identity of this library's build, as an ELF note that the launcher reads before it starts a
//! program. A library of another build would misread the launcher's variables.

use usring_sys::width;

/// Name and type of the note, which the launcher knows, too (`usring_cli::library`).
const NAME: [u8; 8] = *b"usring\0\0";
const KIND: u32 = 1;

const TEXT: &str = env!("USRING_BUILD_IDENTITY");

/// An ELF note (elf(5)): three words, then the name and the content, each padded to four bytes.
#[repr(C, align(4))]
struct Note {
    name_size: u32,
    content_size: u32,
    kind: u32,
    name: [u8; 8],
    content: [u8; TEXT.len().next_multiple_of(4)],
}

#[used]
#[unsafe(link_section = ".note.usring")]
static IDENTITY: Note =
    Note { name_size: 7, content_size: width::count(TEXT.len()), kind: KIND, name: NAME, content: padded() };

const fn padded() -> [u8; TEXT.len().next_multiple_of(4)] {
    let mut content = [0; TEXT.len().next_multiple_of(4)];
    let mut at = 0;
    while at < TEXT.len() {
        content[at] = TEXT.as_bytes()[at];
        at += 1;
    }
    content
}
