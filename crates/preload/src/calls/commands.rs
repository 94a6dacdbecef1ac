//! Calls whose arguments depend on a command, a request, an operation or flags.
//!
//! One function per call, from the arguments to their shape; a command that is not named points
//! nowhere. Numbers are the kernel's, their names stand beside them.

use uzswap::sys::nr;

use super::ioctl;
use super::records::Id;
use super::shapes::Arg::*;
use super::shapes::Kind;
use super::shapes::Length::*;
use super::shapes::Number::*;
use super::shapes::{Args, NO_POINTERS, args, only};

/// The shape of a call that the table marks `command`.
pub fn shape(nr: usize, given: &[usize; 6]) -> Args {
    let int = |index: usize| given[index] as u32;
    match nr {
        nr::IOCTL => only(2, ioctl::argument(int(1))),
        nr::FCNTL => fcntl(int(1)),
        nr::FUTEX => futex(int(1)),
        nr::GETSOCKOPT => getsockopt(int(1), int(2)),
        nr::SETSOCKOPT => setsockopt(int(1), int(2)),
        nr::PRCTL => prctl(int(0), given[1]),
        nr::ARCH_PRCTL => arch_prctl(int(0)),
        nr::CLONE => clone(given[0]),
        nr::PTRACE => ptrace(given[0], given[3]),
        nr::SHMCTL => shmctl(int(1)),
        nr::SEMCTL => semctl(int(2)),
        nr::MSGCTL => msgctl(int(1)),
        nr::KEYCTL => keyctl(int(0)),
        nr::BPF => bpf(int(0)),
        nr::SECCOMP => seccomp(int(0)),
        nr::QUOTACTL => quotactl(int(0), args(&[Int, Str])),
        nr::QUOTACTL_FD => quotactl(int(1), NO_POINTERS),
        nr::IO_URING_ENTER => io_uring_enter(int(3)),
        nr::IO_URING_REGISTER => io_uring_register(int(1)),
        nr::GET_MEMPOLICY => get_mempolicy(given[4]),
        nr::FSCONFIG => fsconfig(int(1)),
        nr::KCMP if int(2) == 7 /* EPOLL_TFD */ => only(4, In(Fixed(12))),
        nr::LANDLOCK_ADD_RULE => {
            let is_path_beneath = int(1) == 1;
            only(2, In(Fixed(if is_path_beneath { 12 } else { 16 })))
        }
        nr::REBOOT if int(2) == 0xA1B2_C3D4 /* RESTART2 */ => only(3, Str),
        nr::SYSFS => match int(0) {
            1 => only(1, Str),
            2 => only(2, Out(Fixed(256))),
            _ => NO_POINTERS,
        },
        _ => NO_POINTERS,
    }
}

/// Whether the kernel goes on using the argument of an ioctl. Such a request may end long after
/// paging has begun, so its memory is kept while dormant, too.
pub fn is_kept(request: u32) -> bool {
    matches!(ioctl::argument(request), Record(id) if id.layout().kind == Kind::Keep)
}

fn fcntl(command: u32) -> Args {
    match command {
        // GETLK, SETLK, SETLKW and OFD_*: struct flock
        5..=7 | 36..=38 => only(2, Out(Fixed(32))),
        // SETOWN_EX, GETOWN_EX, GETOWNER_UIDS
        15..=17 => only(2, Out(Fixed(8))),
        // GET_RW_HINT, SET_RW_HINT, GET_FILE_RW_HINT, SET_FILE_RW_HINT, GETDELEG, SETDELEG
        1035..=1040 => only(2, Out(Fixed(8))),
        _ => NO_POINTERS,
    }
}

fn futex(operation: u32) -> Args {
    // The word of a shared futex is looked up as if for writing, even to wake.
    const WORD: super::shapes::Arg = Out(Fixed(4));
    const TIMEOUT: super::shapes::Arg = In(Fixed(16));
    match operation & 0x7f {
        // WAIT, WAIT_BITSET
        0 | 9 => args(&[WORD, Int, Int, TIMEOUT]),
        // REQUEUE, CMP_REQUEUE, WAKE_OP, CMP_REQUEUE_PI: the fourth argument is a number
        3 | 4 | 5 | 12 => args(&[WORD, Int, Int, Int, WORD]),
        // LOCK_PI, LOCK_PI2
        6 | 13 => args(&[WORD, Int, Int, TIMEOUT]),
        // WAKE, WAKE_BITSET, UNLOCK_PI, TRYLOCK_PI
        1 | 10 | 7 | 8 => args(&[WORD]),
        // WAIT_REQUEUE_PI
        11 => args(&[WORD, Int, Int, TIMEOUT, WORD]),
        _ => NO_POINTERS,
    }
}

fn getsockopt(level: u32, name: u32) -> Args {
    let value = match (level, name) {
        // SOL_SOCKET, SO_GET_FILTER: the length counts instructions
        (1, 26) => Out(Array(8, At(4))),
        // SOL_TCP, TCP_ZEROCOPY_RECEIVE
        (6, 35) => Sized(Id::TcpZerocopyReceive, At(4)),
        // SOL_IP, SOL_IPV6: IPT_SO_GET_ENTRIES, ARPT_SO_GET_ENTRIES and their like are of any
        // length.
        (0 | 41, 64..=255) => Out(Len(At(4))),
        // Nothing else is long, and what the length says beforehand may be anything.
        _ => Out(AtMost(u16::MAX, At(4))),
    };
    args(&[Int, Int, Int, value, Out(Fixed(4))])
}

fn setsockopt(level: u32, name: u32) -> Args {
    let value = match (level, name) {
        // SOL_SOCKET, SO_ATTACH_FILTER and SO_ATTACH_REUSEPORT_CBPF; SOL_PACKET, PACKET_FANOUT_DATA
        (1, 26 | 51) | (263, 22) => Sized(Id::Fprog, I32(4)),
        // SOL_IP, IPT_SO_SET_REPLACE and ARPT_SO_SET_REPLACE; SOL_IPV6, IP6T_SO_SET_REPLACE
        (0, 64) | (41, 64) => Record(Id::IptReplace),
        (0, 96) => Record(Id::ArptReplace),
        _ => In(Len(I32(4))),
    };
    only(3, value)
}

fn prctl(option: u32, second: usize) -> Args {
    match option {
        // GET_PDEATHSIG, GET_UNALIGN, GET_FPEMU, GET_FPEXC, GET_ENDIAN, GET_TSC,
        // GET_CHILD_SUBREAPER
        2 | 5 | 9 | 11 | 19 | 25 | 37 => only(1, Out(Fixed(4))),
        // SET_NAME, GET_NAME
        15 => only(1, Str),
        16 => only(1, Out(Fixed(16))),
        // SET_SECCOMP with MODE_FILTER
        22 if second == 2 => only(2, Record(Id::Fprog)),
        // SET_MM: AUXV, MAP, MAP_SIZE
        35 => match second {
            12 => only(2, In(Len(U64(3)))),
            14 => only(2, Sized(Id::MmMap, U64(3))),
            15 => only(2, Out(Fixed(4))),
            _ => NO_POINTERS,
        },
        // GET_TID_ADDRESS
        40 => only(1, Out(Fixed(8))),
        // SET_SYSCALL_USER_DISPATCH: the selector is read at every system call from then on
        59 => only(4, Keep(Fixed(1))),
        // SCHED_CORE with GET
        62 if second == 0 => only(4, Out(Fixed(8))),
        // SET_VMA with ANON_NAME, GET_AUXV
        0x5356_4d41 => only(4, Str),
        0x4155_5856 => only(1, Out(Len(U64(2)))),
        _ => NO_POINTERS,
    }
}

fn arch_prctl(option: u32) -> Args {
    match option {
        // GET_FS, GET_GS; GET_XCOMP_SUPP, GET_XCOMP_PERM, GET_XCOMP_GUEST_PERM; GET_UNTAG_MASK,
        // GET_MAX_TAG_BITS; SHSTK_STATUS
        0x1003 | 0x1004 | 0x1021 | 0x1022 | 0x1024 | 0x4001 | 0x4003 | 0x5005 => {
            only(1, Out(Fixed(8)))
        }
        _ => NO_POINTERS,
    }
}

fn clone(flags: usize) -> Args {
    const PIDFD: usize = 0x1000;
    const PARENT_SETTID: usize = 0x10_0000;
    const CHILD_CLEARTID: usize = 0x20_0000;
    const CHILD_SETTID: usize = 0x100_0000;
    let mut shape = NO_POINTERS;
    if flags & (PARENT_SETTID | PIDFD) != 0 {
        shape[2] = Out(Fixed(4));
    }
    // The new thread sets it once it runs, and clears it when it ends.
    if flags & (CHILD_SETTID | CHILD_CLEARTID) != 0 {
        shape[3] = Keep(Fixed(4));
    }
    shape
}

fn ptrace(request: usize, data: usize) -> Args {
    match request {
        // PEEKTEXT, PEEKDATA, PEEKUSER
        1..=3 => only(3, Out(Fixed(8))),
        // GETREGS, SETREGS; GETFPREGS, SETFPREGS; GETFPXREGS, SETFPXREGS; GET_THREAD_AREA,
        // SET_THREAD_AREA
        12 | 13 => only(3, Out(Fixed(216))),
        14 | 15 | 18 | 19 => only(3, Out(Fixed(512))),
        25 | 26 => only(3, Out(Fixed(16))),
        // ARCH_PRCTL: the option is the fourth argument
        30 => only(2, arch_prctl(data as u32)[1]),
        // GETEVENTMSG; GETSIGINFO, SETSIGINFO; GETREGSET, SETREGSET; PEEKSIGINFO
        0x4201 => only(3, Out(Fixed(8))),
        0x4202 | 0x4203 => only(3, Out(Fixed(128))),
        0x4204 | 0x4205 => only(3, Record(Id::RegisterSet)),
        0x4209 => args(&[Int, Int, In(Fixed(16)), Out(Fixed(65535))]),
        // GETSIGMASK, SETSIGMASK; GET_METADATA, GET_SYSCALL_INFO, GET_RSEQ_CONFIGURATION,
        // {SET,GET}_SYSCALL_USER_DISPATCH_CONFIG, SET_SYSCALL_INFO: the third argument is the size
        0x420a | 0x420b | 0x420d..=0x4212 => only(3, Out(Struct(U64(2)))),
        // SECCOMP_GET_FILTER: 4096 instructions at most
        0x420c => only(3, Out(Fixed(32768))),
        _ => NO_POINTERS,
    }
}

fn shmctl(command: u32) -> Args {
    match command {
        // IPC_SET, IPC_STAT, SHM_STAT, SHM_STAT_ANY; IPC_INFO; SHM_INFO
        1 | 2 | 13 | 15 => only(2, Out(Fixed(112))),
        3 => only(2, Out(Fixed(72))),
        14 => only(2, Out(Fixed(48))),
        _ => NO_POINTERS,
    }
}

fn semctl(command: u32) -> Args {
    match command {
        // IPC_SET, IPC_STAT, SEM_STAT, SEM_STAT_ANY; IPC_INFO, SEM_INFO
        1 | 2 | 18 | 20 => only(3, Out(Fixed(104))),
        3 | 19 => only(3, Out(Fixed(40))),
        // GETALL, SETALL: as many as the set has, at most SEMMSL (32000) as the kernel comes
        13 | 17 => only(3, Out(Fixed(64000))),
        _ => NO_POINTERS,
    }
}

fn msgctl(command: u32) -> Args {
    match command {
        // IPC_SET, IPC_STAT, MSG_STAT, MSG_STAT_ANY; IPC_INFO, MSG_INFO
        1 | 2 | 11 | 13 => only(2, Out(Fixed(120))),
        3 | 12 => only(2, Out(Fixed(32))),
        _ => NO_POINTERS,
    }
}

fn keyctl(operation: u32) -> Args {
    match operation {
        // JOIN_SESSION_KEYRING
        1 => args(&[Int, Str]),
        // UPDATE, INSTANTIATE
        2 | 12 => args(&[Int, Int, In(Len(U64(3)))]),
        // DESCRIBE, READ, GET_SECURITY
        6 | 11 | 17 => args(&[Int, Int, Out(Len(U64(3)))]),
        // SEARCH, RESTRICT_KEYRING
        10 | 29 => args(&[Int, Int, Str, Str]),
        // INSTANTIATE_IOV
        20 => args(&[Int, Int, Iov(Kind::In, U64(3))]),
        // DH_COMPUTE
        23 => args(&[Int, In(Fixed(12)), Out(Len(U64(3))), Int, Record(Id::KeyKdf)]),
        // PKEY_QUERY
        24 => args(&[Int, Int, Int, Str, Out(Fixed(56))]),
        // PKEY_ENCRYPT, DECRYPT, SIGN, VERIFY: the lengths are in the parameters
        25..=28 => args(&[Int, In(Fixed(40)), Str, In(Fixed(4096)), Out(Fixed(4096))]),
        // CAPABILITIES
        31 => args(&[Int, Out(Len(U64(2)))]),
        _ => NO_POINTERS,
    }
}

fn bpf(command: u32) -> Args {
    only(
        1,
        match command {
            // MAP_{LOOKUP,UPDATE,DELETE}_ELEM, MAP_GET_NEXT_KEY; MAP_LOOKUP_AND_DELETE_ELEM
            1..=4 | 21 => Sized(Id::BpfElement, U32(2)),
            5 => Sized(Id::BpfLoad, U32(2)),
            // OBJ_PIN, OBJ_GET; RAW_TRACEPOINT_OPEN
            6 | 7 | 17 => Sized(Id::BpfPath, U32(2)),
            10 => Sized(Id::BpfTestRun, U32(2)),
            15 => Sized(Id::BpfInfo, U32(2)),
            16 => Sized(Id::BpfQuery, U32(2)),
            18 => Sized(Id::BpfBtf, U32(2)),
            20 => Sized(Id::BpfTask, U32(2)),
            24..=27 => Sized(Id::BpfBatch, U32(2)),
            28 => Sized(Id::BpfLink, U32(2)),
            37 => Sized(Id::BpfStream, U32(2)),
            _ => Out(Struct(U32(2))),
        },
    )
}

fn seccomp(operation: u32) -> Args {
    match operation {
        // SET_MODE_FILTER, GET_ACTION_AVAIL, GET_NOTIF_SIZES
        1 => only(2, Record(Id::Fprog)),
        2 => only(2, In(Fixed(4))),
        3 => only(2, Out(Fixed(6))),
        _ => NO_POINTERS,
    }
}

/// quotactl and quotactl_fd: the data is argument 3.
fn quotactl(command: u32, mut shape: Args) -> Args {
    shape[3] = match command >> 8 {
        // SYNC, QUOTAOFF
        0x80_0001 | 0x80_0003 => Int,
        // QUOTAON: the quota file
        0x80_0002 => Str,
        // The largest of the structs is fs_quota_statv.
        _ => Out(Fixed(160)),
    };
    shape
}

fn io_uring_enter(flags: u32) -> Args {
    const EXT_ARG: u32 = 1 << 3;
    const EXT_ARG_REG: u32 = 1 << 6;
    if flags & EXT_ARG_REG != 0 {
        NO_POINTERS
    } else if flags & EXT_ARG != 0 {
        only(4, Sized(Id::EnterArg, U64(5)))
    } else {
        only(4, In(Struct(U64(5))))
    }
}

fn io_uring_register(operation: u32) -> Args {
    // Bit 31: the descriptor is an index.
    only(
        2,
        match operation & 0x7fff_ffff {
            // BUFFERS: pinned until they are unregistered
            0 => Iov(Kind::Keep, U32(3)),
            // FILES, EVENTFD, EVENTFD_ASYNC
            2 | 4 | 7 => In(Array(4, U32(3))),
            6 => Record(Id::RingUpdate),
            // PROBE; RESTRICTIONS; RING_FDS and its opposite
            8 => Out(Fixed(16 + 256 * 8)),
            11 => In(Array(16, U32(3))),
            20 | 21 => Out(Array(16, U32(3))),
            // FILES2, BUFFERS2 and their updates: the last argument is the size
            13 => Sized(Id::RingFiles, U32(3)),
            14 => Sized(Id::RingFilesUpdate, U32(3)),
            15 => Sized(Id::RingBuffers, U32(3)),
            16 => Sized(Id::RingBuffersUpdate, U32(3)),
            // IOWQ_AFF, IOWQ_MAX_WORKERS
            17 => In(Len(U32(3))),
            19 => Out(Fixed(8)),
            22 => Record(Id::RingProvided),
            // PBUF_RING's opposite, PBUF_STATUS; SYNC_CANCEL, SEND_MSG_RING; FILE_ALLOC_RANGE,
            // NAPI, CLOCK
            23 | 26 => Out(Fixed(40)),
            24 | 31 => Out(Fixed(64)),
            25 | 27..=29 => Out(Fixed(16)),
            // CLONE_BUFFERS, ZCRX_IFQ, RESIZE_RINGS, MEM_REGION, QUERY
            30 => Out(Fixed(32)),
            32 => Record(Id::RingZcrx),
            33 => Out(Fixed(120)),
            34 => Record(Id::RingMemory),
            35 => Record(Id::RingQuery),
            _ => NO_POINTERS[0],
        },
    )
}

fn get_mempolicy(flags: usize) -> Args {
    const NODE: usize = 1;
    const ADDR: usize = 2;
    let mut shape = args(&[Out(Fixed(4)), Out(Bits(U64(2)))]);
    if flags & (NODE | ADDR) == NODE | ADDR {
        // The node of a page is asked for: the kernel faults it in.
        shape[3] = In(Fixed(1));
    }
    shape
}

fn fsconfig(command: u32) -> Args {
    match command {
        // SET_FLAG, SET_FD; SET_STRING, SET_PATH, SET_PATH_EMPTY; SET_BINARY
        0 | 5 => args(&[Int, Int, Str]),
        1 | 3 | 4 => args(&[Int, Int, Str, Str]),
        2 => args(&[Int, Int, Str, In(Len(I32(4)))]),
        _ => NO_POINTERS,
    }
}
