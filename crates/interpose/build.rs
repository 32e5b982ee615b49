//! Links the library: by itself, without libc and its start files, so that the loader runs its
//! constructor before all others. It gets the identity of this build.

include!("../cli/build_identity.rs");

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../cli/build_identity.rs");
    provide_identity();
    for argument in [
        // No libc at link time: a missing symbol must show here, not at run time.
        "-nostartfiles",
        "-nostdlib",
        "-Wl,--no-undefined",
        // The library's calls bind to its own functions, whatever the program defines.
        "-Wl,-Bsymbolic",
        "-Wl,-z,now",
        "-Wl,-z,relro",
        // The entry points must be ready before any other constructor makes a call.
        "-Wl,-z,initfirst",
        "-Wl,-soname,libusring.so",
        // The bounds of the entry points are visible to this library only.
        "-Wl,-z,start-stop-visibility=hidden",
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
