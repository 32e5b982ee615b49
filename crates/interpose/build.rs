//! How the library is linked: by itself, without libc and its start files, and
//! such that the loader runs its constructor before anybody else's. It has the identity of this build.

include!("../usring/build_identity.rs");

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../usring/build_identity.rs");
    provide_identity();
    for argument in [
        // No libc at link time: what is missing must show here, not at run time.
        "-nostartfiles",
        "-nostdlib",
        "-Wl,--no-undefined",
        // Our own calls bind to our own functions, whatever the program defines.
        "-Wl,-Bsymbolic",
        "-Wl,-z,now",
        "-Wl,-z,relro",
        // The doors must stand before any other constructor makes a call.
        "-Wl,-z,initfirst",
        "-Wl,-soname,libusring.so",
        // The bounds of the doors are nobody else's business.
        "-Wl,-z,start-stop-visibility=hidden",
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
