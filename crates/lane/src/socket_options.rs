//! Linux socket options that no wrapper offers: pacing rate, limit of unsent bytes, keep-alive probes, and the kernel's
//! TCP counters.
//!
//! The only home of `unsafe` in this crate: one call that sets, and one that reads.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::accounting::KernelTimes;

/// Asks the kernel to send no faster than `bytes_per_s`. With the `fq` queue it is exact; without, TCP paces by itself.
///
/// # Errors
/// The `setsockopt` error; the rate is as it was.
pub fn set_pacing_rate(socket: BorrowedFd<'_>, bytes_per_s: u64) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &bytes_per_s.to_ne_bytes())
}

/// Asks the kernel to take no more while more than `bytes` that it has not sent wait there.
///
/// # Errors
/// The `setsockopt` error; the limit is as it was.
pub fn set_unsent_max(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &bytes.to_ne_bytes())
}

/// Asks the kernel to probe a peer that is silent for `silent_s`, every `between_s`, and to close the connection when
/// `probes` in a row were not answered.
///
/// # Errors
/// The `setsockopt` error; some of the options may be set.
pub fn set_keepalive(socket: BorrowedFd<'_>, silent_s: u32, between_s: u32, probes: u32) -> io::Result<()> {
    let tcp = [(libc::TCP_KEEPIDLE, silent_s), (libc::TCP_KEEPINTVL, between_s), (libc::TCP_KEEPCNT, probes)];
    for (name, value) in tcp {
        set(socket, libc::IPPROTO_TCP, name, &value.to_ne_bytes())?;
    }
    set(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1u32.to_ne_bytes())
}

/// TCP counters of a connection (`TCP_INFO`). Counters that an older kernel lacks are `None`.
///
/// # Errors
/// The `getsockopt` error, for instance on a socket that is not TCP.
pub fn kernel_times(socket: BorrowedFd<'_>) -> io::Result<KernelTimes> {
    let mut info = [0u8; size_of::<libc::tcp_info>()];
    let mut len = libc::socklen_t::try_from(info.len()).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open while it is borrowed; both pointers are to live values, and the kernel writes at most
    // `len` bytes, which is the array's length.
    let status = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len)
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    let told = &info[..info.len().min(usize::try_from(len).unwrap_or(0))];
    Ok(KernelTimes {
        busy_us: field(told, offset_of!(libc::tcp_info, tcpi_busy_time)),
        receiver_limited_us: field(told, offset_of!(libc::tcp_info, tcpi_rwnd_limited)),
        buffer_limited_us: field(told, offset_of!(libc::tcp_info, tcpi_sndbuf_limited)),
        delivery_bytes_per_s: field(told, offset_of!(libc::tcp_info, tcpi_delivery_rate)),
    })
}

/// Sets an option to a value of as many bytes as the kernel wants for it.
fn set(socket: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int, value: &[u8]) -> io::Result<()> {
    let len = libc::socklen_t::try_from(value.len()).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open while it is borrowed; the pointer is to live bytes, of which the kernel reads at most
    // `len`, which is their number.
    let status = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value.as_ptr().cast(), len) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The u64 at an offset of what the kernel wrote, if it wrote that far.
fn field(told: &[u8], at: usize) -> Option<u64> {
    told.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_paced_connection_takes_its_time_and_the_kernel_counts_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut receiver = listener.accept().unwrap().0;
        set_pacing_rate(sender.as_fd(), 20_000_000).unwrap();
        let reading = std::thread::spawn(move || receiver.read_to_end(&mut Vec::new()).unwrap());
        let before = kernel_times(sender.as_fd()).unwrap();
        sender.write_all(&vec![0; 4_000_000]).unwrap();
        sender.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(reading.join().unwrap(), 4_000_000);
        let after = kernel_times(sender.as_fd()).unwrap();
        // The rate allows 200 ms for all, less what the kernel lets through at the start.
        let busy_us = after.busy_us.unwrap() - before.busy_us.unwrap();
        assert!(busy_us > 50_000, "{busy_us} us busy: {after:?}");
        assert!(after.delivery_bytes_per_s.is_some());
    }

    #[test]
    fn a_silent_connection_has_a_timer_of_its_own() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let watched = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        // The second word of a connection's line is its end here; the sixth begins with its timer, and 2 is that for probes.
        let timer = || {
            let end = format!(":{:04X}", watched.local_addr().unwrap().port());
            let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
            let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            let line = table.lines().map(words).find(|words| words[1].ends_with(&end)).unwrap();
            line[5].split(':').next().unwrap().to_owned()
        };
        assert_eq!(timer(), "00");
        set_keepalive(watched.as_fd(), 60, 10, 3).unwrap();
        assert_eq!(timer(), "02");
    }

    #[test]
    fn a_short_answer_gives_no_field_beyond_it() {
        let mut told = vec![0; 16];
        told[8] = 7;
        assert_eq!(field(&told, 8), Some(7u64.to_le()));
        assert_eq!((field(&told, 9), field(&told[..15], 8), field(&told, 99)), (None, None, None));
    }

    #[test]
    fn what_is_no_tcp_socket_is_an_error() {
        let file = std::fs::File::open(file!()).or_else(|_| std::fs::File::open("Cargo.toml")).unwrap();
        assert!(kernel_times(file.as_fd()).is_err());
        assert!(set_pacing_rate(file.as_fd(), 1).is_err());
        assert!(set_unsent_max(file.as_fd(), 1).is_err());
        assert!(set_keepalive(file.as_fd(), 1, 1, 1).is_err());
    }
}
