//! Links the library without libc and without libc's start files. Makes the loader run the
//! library's constructor before all others. Also gives the library the identity of this build.

include!("../cli/build_identity.rs");
include!("soname.rs");

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../cli/build_identity.rs");
    println!("cargo:rerun-if-changed=soname.rs");
    provide_identity();
    let version = std::env::var("CARGO_PKG_VERSION").expect("cargo runs build scripts");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{}", soname(&version));
    for argument in [
        // Links without libc, so that a missing symbol is an error here and not at run time.
        "-nostartfiles",
        "-nostdlib",
        "-Wl,--no-undefined",
        // Resolves the library's calls of its own functions within the library, even if the program
        // defines functions with these names.
        "-Wl,-Bsymbolic",
        "-Wl,-z,now",
        "-Wl,-z,relro",
        // Gives each segment pages of the file that no other segment shares. If the data segment
        // shared a page with another segment, that page would be mapped twice. The kernel could
        // then write the probes' semaphore into the wrong copy.
        "-Wl,-z,separate-loadable-segments",
        // The entry points must be ready before the constructor of any other library makes a call.
        "-Wl,-z,initfirst",
        // Only this library can see the symbols that mark the start and the end of the entry
        // points.
        "-Wl,-z,start-stop-visibility=hidden",
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
