//! The shape of every x86-64 system call, up to Linux 7.0: one row per call, in the order of the
//! numbers. Calls that went away since 5.11 (uselib, lookup_dcookie) keep theirs.
//!
//! A row reads: name in `nr.rs`, disposition, arguments. `command` stands where the arguments
//! depend on one of them (see `commands.rs`). Arguments that are left out at the end are `Int`.
//! Lengths that the kernel itself limits (a socket address, a page for a struct) are limited in
//! `walk.rs`.

use uzswap::sys::nr;

use super::records::Id;
use super::shapes::Arg::*;
use super::shapes::Disposition::*;
use super::shapes::Kind;
use super::shapes::Length::*;
use super::shapes::Number::*;
use super::shapes::{Shape, args};

// Structs of the kernel's ABI that are passed by themselves, in bytes.
const INT: u16 = 4;
const LONG: u16 = 8;
const TIMESPEC: u16 = 16;
const ITIMERSPEC: u16 = 32;
const SIGSET: u16 = 8;
const SIGACTION: u16 = 32;
const SIGEVENT: u16 = 64;
const SIGINFO: u16 = 128;
const STACK: u16 = 24;
const STAT: u16 = 144;
const STATFS: u16 = 120;
const STATX: u16 = 256;
const RLIMIT: u16 = 16;
const RUSAGE: u16 = 144;
const TIMEX: u16 = 208;
const POLLFD: u16 = 8;
const EPOLL_EVENT: u16 = 12;
const IOVEC: u16 = 16;
const IO_EVENT: u16 = 32;
const SEMBUF: u16 = 6;
const MQ_ATTR: u16 = 64;
/// The longest address of a socket.
const SOCKADDR: u16 = 128;

macro_rules! shapes {
    (@row $disposition:ident command) => { Shape::by_command($disposition) };
    (@row $disposition:ident ($($arg:expr),*)) => { Shape::new($disposition, args(&[$($arg),*])) };
    ($($name:ident $disposition:ident $row:tt)*) => {
        pub static SHAPES: [Shape; nr::COUNT] = {
            let mut all = [Shape::GAP; nr::COUNT];
            $(
                assert!(!all[number::$name].listed, "a call with two rows");
                all[number::$name] = shapes!(@row $disposition $row);
            )*
            all
        };
        pub static NAMES: [&str; nr::COUNT] = {
            let mut all = [""; nr::COUNT];
            $( all[number::$name] = stringify!($name); )*
            all
        };
    };
}

/// The numbers of `nr.rs`, and two that only trampolines of the kernel's own making call.
mod number {
    pub use uzswap::sys::nr::*;
    pub const URETPROBE: usize = 335;
    pub const UPROBE: usize = 336;
}

shapes! {
    READ                    Piecewise (Int, Out(Len(U64(2))))
    WRITE                   Piecewise (Int, In(Len(U64(2))))
    OPEN                    Buffers (Str)
    CLOSE                   Descriptor ()
    STAT                    Buffers (Str, Out(Fixed(STAT)))
    FSTAT                   Buffers (Int, Out(Fixed(STAT)))
    LSTAT                   Buffers (Str, Out(Fixed(STAT)))
    POLL                    Buffers (Out(Array(POLLFD, U32(1))))
    LSEEK                   Plain ()
    MMAP                    MemoryMap ()
    MPROTECT                MemoryMap ()
    MUNMAP                  MemoryMap ()
    BRK                     MemoryMap ()
    RT_SIGACTION            Signal (Int, In(Fixed(SIGACTION)), Out(Fixed(SIGACTION)))
    RT_SIGPROCMASK          Signal (Int, In(Fixed(SIGSET)), Out(Fixed(SIGSET)))
    RT_SIGRETURN            Signal ()
    IOCTL                   Buffers command
    PREAD64                 Piecewise (Int, Out(Len(U64(2))))
    PWRITE64                Piecewise (Int, In(Len(U64(2))))
    READV                   Piecewise (Int, Iov(Kind::Out, U64(2)))
    WRITEV                  Piecewise (Int, Iov(Kind::In, U64(2)))
    ACCESS                  Buffers (Str)
    PIPE                    Buffers (Out(Fixed(2 * INT)))
    SELECT                  Buffers (Int, Out(Descriptors(I32(0))), Out(Descriptors(I32(0))),
                                     Out(Descriptors(I32(0))), Out(Fixed(TIMESPEC)))
    SCHED_YIELD             Plain ()
    MREMAP                  MemoryMap ()
    MSYNC                   MemoryMap ()
    MINCORE                 MemoryMap (Int, Int, Out(PerPage(U64(1))))
    MADVISE                 MemoryMap ()
    SHMGET                  Plain ()
    SHMAT                   MemoryMap ()
    SHMCTL                  Buffers command
    DUP                     Plain ()
    DUP2                    Descriptor ()
    PAUSE                   Plain ()
    NANOSLEEP               Buffers (In(Fixed(TIMESPEC)), Out(Fixed(TIMESPEC)))
    GETITIMER               Buffers (Int, Out(Fixed(ITIMERSPEC)))
    ALARM                   Plain ()
    SETITIMER               ConsumesBeforeFault (Int, In(Fixed(ITIMERSPEC)), Out(Fixed(ITIMERSPEC)))
    GETPID                  Plain ()
    SENDFILE                ConsumesBeforeFault (Int, Int, Out(Fixed(LONG)))
    SOCKET                  Plain ()
    CONNECT                 Buffers (Int, In(AtMost(SOCKADDR, I32(2))))
    ACCEPT                  ConsumesBeforeFault (Int, Out(AtMost(SOCKADDR, At(2))), Out(Fixed(INT)))
    SENDTO                  Special (Int, In(Len(U64(2))), Int, Int, In(AtMost(SOCKADDR, I32(5))))
    RECVFROM                ConsumesBeforeFault (Int, Out(Len(U64(2))), Int, Int,
                                                 Out(AtMost(SOCKADDR, At(5))), Out(Fixed(INT)))
    SENDMSG                 Special (Int, Record(Id::SendMsg))
    RECVMSG                 ConsumesBeforeFault (Int, Record(Id::RecvMsg))
    SHUTDOWN                Plain ()
    BIND                    Buffers (Int, In(AtMost(SOCKADDR, I32(2))))
    LISTEN                  Plain ()
    GETSOCKNAME             Buffers (Int, Out(AtMost(SOCKADDR, At(2))), Out(Fixed(INT)))
    GETPEERNAME             Buffers (Int, Out(AtMost(SOCKADDR, At(2))), Out(Fixed(INT)))
    SOCKETPAIR              Buffers (Int, Int, Int, Out(Fixed(2 * INT)))
    SETSOCKOPT              Special command
    GETSOCKOPT              Buffers command
    CLONE                   Process command
    FORK                    Process ()
    VFORK                   Process ()
    EXECVE                  Process (Str, Strings, Strings)
    EXIT                    Process ()
    WAIT4                   ConsumesBeforeFault (Int, Out(Fixed(INT)), Int, Out(Fixed(RUSAGE)))
    KILL                    Plain ()
    UNAME                   Buffers (Out(Fixed(390)))
    SEMGET                  Plain ()
    SEMOP                   Buffers (Int, In(Array(SEMBUF, U32(2))))
    SEMCTL                  Buffers command
    SHMDT                   MemoryMap ()
    MSGGET                  Plain ()
    MSGSND                  Buffers (Int, In(Head(LONG, U64(2))))
    MSGRCV                  ConsumesBeforeFault (Int, Out(Head(LONG, U64(2))))
    MSGCTL                  Buffers command
    FCNTL                   Descriptor command
    FLOCK                   Plain ()
    FSYNC                   Plain ()
    FDATASYNC               Plain ()
    TRUNCATE                Buffers (Str)
    FTRUNCATE               Plain ()
    GETDENTS                Buffers (Int, Out(Len(U32(2))))
    GETCWD                  Buffers (Out(Len(U64(1))))
    CHDIR                   Buffers (Str)
    FCHDIR                  Plain ()
    RENAME                  Buffers (Str, Str)
    MKDIR                   Buffers (Str)
    RMDIR                   Buffers (Str)
    CREAT                   Buffers (Str)
    LINK                    Buffers (Str, Str)
    UNLINK                  Buffers (Str)
    SYMLINK                 Buffers (Str, Str)
    READLINK                Buffers (Str, Out(Len(I32(2))))
    CHMOD                   Buffers (Str)
    FCHMOD                  Plain ()
    CHOWN                   Buffers (Str)
    FCHOWN                  Plain ()
    LCHOWN                  Buffers (Str)
    UMASK                   Plain ()
    GETTIMEOFDAY            Buffers (Out(Fixed(16)), Out(Fixed(8)))
    GETRLIMIT               Buffers (Int, Out(Fixed(RLIMIT)))
    GETRUSAGE               Buffers (Int, Out(Fixed(RUSAGE)))
    SYSINFO                 Buffers (Out(Fixed(112)))
    TIMES                   Buffers (Out(Fixed(32)))
    PTRACE                  Special command
    GETUID                  Plain ()
    SYSLOG                  Buffers (Int, Out(Len(I32(2))))
    GETGID                  Plain ()
    SETUID                  Process ()
    SETGID                  Process ()
    GETEUID                 Plain ()
    GETEGID                 Plain ()
    SETPGID                 Plain ()
    GETPPID                 Plain ()
    GETPGRP                 Plain ()
    SETSID                  Plain ()
    SETREUID                Process ()
    SETREGID                Process ()
    GETGROUPS               Buffers (Int, Out(Array(INT, I32(0))))
    SETGROUPS               Process (Int, In(Array(INT, I32(0))))
    SETRESUID               Process ()
    GETRESUID               Buffers (Out(Fixed(INT)), Out(Fixed(INT)), Out(Fixed(INT)))
    SETRESGID               Process ()
    GETRESGID               Buffers (Out(Fixed(INT)), Out(Fixed(INT)), Out(Fixed(INT)))
    GETPGID                 Plain ()
    SETFSUID                Process ()
    SETFSGID                Process ()
    GETSID                  Plain ()
    CAPGET                  Buffers (Out(Fixed(8)), Out(Fixed(24)))
    CAPSET                  Process (Out(Fixed(8)), In(Fixed(24)))
    RT_SIGPENDING           Buffers (Out(Len(U64(1))))
    RT_SIGTIMEDWAIT         Signal (In(Fixed(SIGSET)), Out(Fixed(SIGINFO)), In(Fixed(TIMESPEC)))
    RT_SIGQUEUEINFO         Buffers (Int, Int, In(Fixed(SIGINFO)))
    RT_SIGSUSPEND           Signal (In(Fixed(SIGSET)))
    SIGALTSTACK             Signal (In(Fixed(STACK)), Out(Fixed(STACK)))
    UTIME                   Buffers (Str, In(Fixed(16)))
    MKNOD                   Buffers (Str)
    USELIB                  Buffers (Str)
    PERSONALITY             Plain ()
    USTAT                   Buffers (Int, Out(Fixed(32)))
    STATFS                  Buffers (Str, Out(Fixed(STATFS)))
    FSTATFS                 Buffers (Int, Out(Fixed(STATFS)))
    SYSFS                   Buffers command
    GETPRIORITY             Plain ()
    SETPRIORITY             Plain ()
    SCHED_SETPARAM          Buffers (Int, In(Fixed(INT)))
    SCHED_GETPARAM          Buffers (Int, Out(Fixed(INT)))
    SCHED_SETSCHEDULER      Buffers (Int, Int, In(Fixed(INT)))
    SCHED_GETSCHEDULER      Plain ()
    SCHED_GET_PRIORITY_MAX  Plain ()
    SCHED_GET_PRIORITY_MIN  Plain ()
    SCHED_RR_GET_INTERVAL   Buffers (Int, Out(Fixed(TIMESPEC)))
    MLOCK                   MemoryMap ()
    MUNLOCK                 MemoryMap ()
    MLOCKALL                MemoryMap ()
    MUNLOCKALL              MemoryMap ()
    VHANGUP                 Plain ()
    MODIFY_LDT              Buffers (Int, Out(Len(U64(2))))
    PIVOT_ROOT              Buffers (Str, Str)
    _SYSCTL                 Unimplemented ()
    PRCTL                   Process command
    ARCH_PRCTL              Process command
    ADJTIMEX                ConsumesBeforeFault (Out(Fixed(TIMEX)))
    SETRLIMIT               Buffers (Int, In(Fixed(RLIMIT)))
    CHROOT                  Buffers (Str)
    SYNC                    Plain ()
    ACCT                    Buffers (Str)
    SETTIMEOFDAY            Buffers (In(Fixed(16)), In(Fixed(8)))
    MOUNT                   Buffers (Str, Str, Str, Int, In(Fixed(4096)))
    UMOUNT2                 Buffers (Str)
    SWAPON                  Buffers (Str)
    SWAPOFF                 Buffers (Str)
    REBOOT                  Buffers command
    SETHOSTNAME             Buffers (In(Len(I32(1))))
    SETDOMAINNAME           Buffers (In(Len(I32(1))))
    IOPL                    Plain ()
    IOPERM                  Plain ()
    CREATE_MODULE           Unimplemented ()
    INIT_MODULE             Buffers (In(Len(U64(1))), Int, LongStr)
    DELETE_MODULE           Buffers (Str)
    GET_KERNEL_SYMS         Unimplemented ()
    QUERY_MODULE            Unimplemented ()
    QUOTACTL                Buffers command
    NFSSERVCTL              Unimplemented ()
    GETPMSG                 Unimplemented ()
    PUTPMSG                 Unimplemented ()
    AFS_SYSCALL             Unimplemented ()
    TUXCALL                 Unimplemented ()
    SECURITY                Unimplemented ()
    GETTID                  Plain ()
    READAHEAD               Plain ()
    SETXATTR                Buffers (Str, Str, In(Len(U64(3))))
    LSETXATTR               Buffers (Str, Str, In(Len(U64(3))))
    FSETXATTR               Buffers (Int, Str, In(Len(U64(3))))
    GETXATTR                Buffers (Str, Str, Out(Len(U64(3))))
    LGETXATTR               Buffers (Str, Str, Out(Len(U64(3))))
    FGETXATTR               Buffers (Int, Str, Out(Len(U64(3))))
    LISTXATTR               Buffers (Str, Out(Len(U64(2))))
    LLISTXATTR              Buffers (Str, Out(Len(U64(2))))
    FLISTXATTR              Buffers (Int, Out(Len(U64(2))))
    REMOVEXATTR             Buffers (Str, Str)
    LREMOVEXATTR            Buffers (Str, Str)
    FREMOVEXATTR            Buffers (Int, Str)
    TKILL                   Plain ()
    TIME                    Buffers (Out(Fixed(LONG)))
    FUTEX                   Buffers command
    SCHED_SETAFFINITY       Buffers (Int, Int, In(Len(U32(1))))
    SCHED_GETAFFINITY       Buffers (Int, Int, Out(Len(U32(1))))
    SET_THREAD_AREA         Unimplemented ()
    IO_SETUP                Special (Int, Out(Fixed(LONG)))
    IO_DESTROY              Special ()
    IO_GETEVENTS            Special (Int, Int, Int, Out(Array(IO_EVENT, U64(2))),
                                     In(Fixed(TIMESPEC)))
    IO_SUBMIT               Special (Int, Int, RecordPointers(Id::Iocb, U64(1)))
    IO_CANCEL               Special (Int, Out(Fixed(64)), Out(Fixed(IO_EVENT)))
    GET_THREAD_AREA         Unimplemented ()
    LOOKUP_DCOOKIE          Buffers (Int, Out(Len(U64(2))))
    EPOLL_CREATE            Plain ()
    EPOLL_CTL_OLD           Unimplemented ()
    EPOLL_WAIT_OLD          Unimplemented ()
    REMAP_FILE_PAGES        MemoryMap ()
    GETDENTS64              Buffers (Int, Out(Len(U32(2))))
    SET_TID_ADDRESS         Process (Keep(Fixed(INT)))
    RESTART_SYSCALL         Plain ()
    SEMTIMEDOP              Buffers (Int, In(Array(SEMBUF, U32(2))), Int, In(Fixed(TIMESPEC)))
    FADVISE64               Plain ()
    TIMER_CREATE            Buffers (Int, In(Fixed(SIGEVENT)), Out(Fixed(INT)))
    TIMER_SETTIME           ConsumesBeforeFault (Int, Int, In(Fixed(ITIMERSPEC)),
                                                 Out(Fixed(ITIMERSPEC)))
    TIMER_GETTIME           Buffers (Int, Out(Fixed(ITIMERSPEC)))
    TIMER_GETOVERRUN        Plain ()
    TIMER_DELETE            Plain ()
    CLOCK_SETTIME           Buffers (Int, In(Fixed(TIMESPEC)))
    CLOCK_GETTIME           Buffers (Int, Out(Fixed(TIMESPEC)))
    CLOCK_GETRES            Buffers (Int, Out(Fixed(TIMESPEC)))
    CLOCK_NANOSLEEP         Buffers (Int, Int, In(Fixed(TIMESPEC)), Out(Fixed(TIMESPEC)))
    EXIT_GROUP              Process ()
    EPOLL_WAIT              Buffers (Int, Out(Array(EPOLL_EVENT, I32(2))))
    EPOLL_CTL               Buffers (Int, Int, Int, In(Fixed(EPOLL_EVENT)))
    TGKILL                  Plain ()
    UTIMES                  Buffers (Str, In(Fixed(2 * TIMESPEC)))
    VSERVER                 Unimplemented ()
    MBIND                   MemoryMap (Int, Int, Int, In(Bits(U64(4))))
    SET_MEMPOLICY           Buffers (Int, In(Bits(U64(2))))
    GET_MEMPOLICY           Buffers command
    MQ_OPEN                 Buffers (Str, Int, Int, In(Fixed(MQ_ATTR)))
    MQ_UNLINK               Buffers (Str)
    MQ_TIMEDSEND            Buffers (Int, In(Len(U64(2))), Int, Int, In(Fixed(TIMESPEC)))
    MQ_TIMEDRECEIVE         ConsumesBeforeFault (Int, Out(Len(U64(2))), Int, Out(Fixed(INT)),
                                                 In(Fixed(TIMESPEC)))
    MQ_NOTIFY               Buffers (Int, Record(Id::MqNotify))
    MQ_GETSETATTR           ConsumesBeforeFault (Int, In(Fixed(MQ_ATTR)), Out(Fixed(MQ_ATTR)))
    KEXEC_LOAD              Buffers (Int, Int, Records(Id::KexecSegment, U64(1)))
    WAITID                  ConsumesBeforeFault (Int, Int, Out(Fixed(SIGINFO)), Int,
                                                 Out(Fixed(RUSAGE)))
    ADD_KEY                 Buffers (Str, Str, In(Len(U64(3))))
    REQUEST_KEY             Buffers (Str, Str, Str)
    KEYCTL                  Buffers command
    IOPRIO_SET              Plain ()
    IOPRIO_GET              Plain ()
    INOTIFY_INIT            Plain ()
    INOTIFY_ADD_WATCH       Buffers (Int, Str)
    INOTIFY_RM_WATCH        Plain ()
    MIGRATE_PAGES           Buffers (Int, Int, In(Bits(U64(1))), In(Bits(U64(1))))
    OPENAT                  Buffers (Int, Str)
    MKDIRAT                 Buffers (Int, Str)
    MKNODAT                 Buffers (Int, Str)
    FCHOWNAT                Buffers (Int, Str)
    FUTIMESAT               Buffers (Int, Str, In(Fixed(2 * TIMESPEC)))
    NEWFSTATAT              Buffers (Int, Str, Out(Fixed(STAT)))
    UNLINKAT                Buffers (Int, Str)
    RENAMEAT                Buffers (Int, Str, Int, Str)
    LINKAT                  Buffers (Int, Str, Int, Str)
    SYMLINKAT               Buffers (Str, Int, Str)
    READLINKAT              Buffers (Int, Str, Out(Len(I32(3))))
    FCHMODAT                Buffers (Int, Str)
    FACCESSAT               Buffers (Int, Str)
    PSELECT6                Signal (Int, Out(Descriptors(I32(0))), Out(Descriptors(I32(0))),
                                    Out(Descriptors(I32(0))), Out(Fixed(TIMESPEC)),
                                    Record(Id::SigsetArg))
    PPOLL                   Signal (Out(Array(POLLFD, U32(1))), Int, Out(Fixed(TIMESPEC)),
                                    In(Fixed(SIGSET)))
    UNSHARE                 Process ()
    SET_ROBUST_LIST         Process (Keep(Fixed(24)))
    GET_ROBUST_LIST         Buffers (Int, Out(Fixed(LONG)), Out(Fixed(LONG)))
    SPLICE                  ConsumesBeforeFault (Int, Out(Fixed(LONG)), Int, Out(Fixed(LONG)))
    TEE                     Plain ()
    SYNC_FILE_RANGE         Plain ()
    VMSPLICE                Special (Int, Iov(Kind::Keep, U64(2)))
    MOVE_PAGES              MemoryMap (Int, Int, In(Array(LONG, U64(1))), In(Array(INT, U64(1))),
                                       Out(Array(INT, U64(1))))
    UTIMENSAT               Buffers (Int, Str, In(Fixed(2 * TIMESPEC)))
    EPOLL_PWAIT             Signal (Int, Out(Array(EPOLL_EVENT, I32(2))), Int, Int,
                                    In(Fixed(SIGSET)))
    SIGNALFD                Signal (Int, In(Fixed(SIGSET)))
    TIMERFD_CREATE          Plain ()
    EVENTFD                 Plain ()
    FALLOCATE               Plain ()
    TIMERFD_SETTIME         ConsumesBeforeFault (Int, Int, In(Fixed(ITIMERSPEC)),
                                                 Out(Fixed(ITIMERSPEC)))
    TIMERFD_GETTIME         Buffers (Int, Out(Fixed(ITIMERSPEC)))
    ACCEPT4                 ConsumesBeforeFault (Int, Out(AtMost(SOCKADDR, At(2))), Out(Fixed(INT)))
    SIGNALFD4               Signal (Int, In(Fixed(SIGSET)))
    EVENTFD2                Plain ()
    EPOLL_CREATE1           Plain ()
    DUP3                    Descriptor ()
    PIPE2                   Buffers (Out(Fixed(2 * INT)))
    INOTIFY_INIT1           Plain ()
    PREADV                  Piecewise (Int, Iov(Kind::Out, U64(2)))
    PWRITEV                 Piecewise (Int, Iov(Kind::In, U64(2)))
    RT_TGSIGQUEUEINFO       Buffers (Int, Int, Int, In(Fixed(SIGINFO)))
    PERF_EVENT_OPEN         Buffers (Record(Id::PerfEventAttr))
    RECVMMSG                ConsumesBeforeFault (Int, Records(Id::RecvMmsg, U32(2)), Int, Int,
                                                 Out(Fixed(TIMESPEC)))
    FANOTIFY_INIT           Plain ()
    FANOTIFY_MARK           Buffers (Int, Int, Int, Int, Str)
    PRLIMIT64               ConsumesBeforeFault (Int, Int, In(Fixed(RLIMIT)), Out(Fixed(RLIMIT)))
    NAME_TO_HANDLE_AT       Buffers (Int, Str, Record(Id::FileHandle), Out(Fixed(LONG)))
    OPEN_BY_HANDLE_AT       Buffers (Int, Record(Id::FileHandle))
    CLOCK_ADJTIME           ConsumesBeforeFault (Int, Out(Fixed(TIMEX)))
    SYNCFS                  Plain ()
    SENDMMSG                Special (Int, Records(Id::SendMmsg, U32(2)))
    SETNS                   Process ()
    GETCPU                  Buffers (Out(Fixed(INT)), Out(Fixed(INT)))
    PROCESS_VM_READV        Special (Int, Iov(Kind::Out, U64(2)), Int, RemoteIov(Kind::In, U64(4)))
    PROCESS_VM_WRITEV       Special (Int, Iov(Kind::In, U64(2)), Int, RemoteIov(Kind::Out, U64(4)))
    KCMP                    Buffers command
    FINIT_MODULE            Buffers (Int, LongStr)
    SCHED_SETATTR           Buffers (Int, Record(Id::SchedAttr))
    SCHED_GETATTR           Buffers (Int, Out(Struct(U32(2))))
    RENAMEAT2               Buffers (Int, Str, Int, Str)
    SECCOMP                 Process command
    GETRANDOM               Buffers (Out(Len(U64(1))))
    MEMFD_CREATE            Buffers (Str)
    KEXEC_FILE_LOAD         Buffers (Int, Int, Int, In(Len(U64(2))))
    BPF                     Special command
    EXECVEAT                Process (Int, Str, Strings, Strings)
    USERFAULTFD             Special ()
    MEMBARRIER              Plain ()
    MLOCK2                  MemoryMap ()
    COPY_FILE_RANGE         ConsumesBeforeFault (Int, Out(Fixed(LONG)), Int, Out(Fixed(LONG)))
    PREADV2                 Piecewise (Int, Iov(Kind::Out, U64(2)))
    PWRITEV2                Piecewise (Int, Iov(Kind::In, U64(2)))
    PKEY_MPROTECT           MemoryMap ()
    PKEY_ALLOC              Plain ()
    PKEY_FREE               Plain ()
    STATX                   Buffers (Int, Str, Int, Int, Out(Fixed(STATX)))
    IO_PGETEVENTS           Signal (Int, Int, Int, Out(Array(IO_EVENT, U64(2))),
                                    In(Fixed(TIMESPEC)), Record(Id::SigsetArg))
    RSEQ                    Process (Keep(Struct(U32(1))))
    URETPROBE               Plain ()
    UPROBE                  Plain ()
    PIDFD_SEND_SIGNAL       Buffers (Int, Int, In(Fixed(SIGINFO)))
    IO_URING_SETUP          Special (Int, Out(Fixed(120)))
    IO_URING_ENTER          Special command
    IO_URING_REGISTER       Special command
    OPEN_TREE               Buffers (Int, Str)
    MOVE_MOUNT              Buffers (Int, Str, Int, Str)
    FSOPEN                  Buffers (Str)
    FSCONFIG                Buffers command
    FSMOUNT                 Plain ()
    FSPICK                  Buffers (Int, Str)
    PIDFD_OPEN              Plain ()
    CLONE3                  Process (Sized(Id::CloneArgs, U64(1)))
    CLOSE_RANGE             Descriptor ()
    OPENAT2                 Buffers (Int, Str, In(Struct(U64(3))))
    PIDFD_GETFD             Plain ()
    FACCESSAT2              Buffers (Int, Str)
    PROCESS_MADVISE         MemoryMap (Int, In(Array(IOVEC, U64(2))))
    EPOLL_PWAIT2            Signal (Int, Out(Array(EPOLL_EVENT, I32(2))), Int, In(Fixed(TIMESPEC)),
                                    In(Fixed(SIGSET)))
    MOUNT_SETATTR           Buffers (Int, Str, Int, In(Struct(U64(4))))
    QUOTACTL_FD             Buffers command
    LANDLOCK_CREATE_RULESET Process (In(Struct(U64(1))))
    LANDLOCK_ADD_RULE       Process command
    LANDLOCK_RESTRICT_SELF  Process ()
    MEMFD_SECRET            Plain ()
    PROCESS_MRELEASE        Plain ()
    FUTEX_WAITV             Buffers (Records(Id::FutexWaiter, U32(1)), Int, Int,
                                     In(Fixed(TIMESPEC)))
    SET_MEMPOLICY_HOME_NODE MemoryMap ()
    CACHESTAT               Buffers (Int, In(Fixed(16)), Out(Fixed(40)))
    FCHMODAT2               Buffers (Int, Str)
    MAP_SHADOW_STACK        MemoryMap ()
    FUTEX_WAKE              Buffers (Out(Fixed(INT)))
    FUTEX_WAIT              Buffers (Out(Fixed(INT)), Int, Int, Int, In(Fixed(TIMESPEC)))
    FUTEX_REQUEUE           Buffers (Records(Id::FutexWaiter, Just(2)))
    STATMOUNT               Buffers (Record(Id::MntIdReq), Out(Len(U64(2))))
    LISTMOUNT               Buffers (Record(Id::MntIdReq), Out(Array(LONG, U64(2))))
    LSM_GET_SELF_ATTR       Buffers (Int, Out(Len(At(2))), Out(Fixed(INT)))
    LSM_SET_SELF_ATTR       Buffers (Int, In(Struct(U32(2))))
    LSM_LIST_MODULES        Buffers (Out(Len(At(1))), Out(Fixed(INT)))
    MSEAL                   MemoryMap ()
    SETXATTRAT              Buffers (Int, Str, Int, Str, Sized(Id::SetXattr, U64(5)))
    GETXATTRAT              Buffers (Int, Str, Int, Str, Sized(Id::GetXattr, U64(5)))
    LISTXATTRAT             Buffers (Int, Str, Int, Out(Len(U64(4))))
    REMOVEXATTRAT           Buffers (Int, Str, Int, Str)
    OPEN_TREE_ATTR          Buffers (Int, Str, Int, In(Struct(U64(4))))
    FILE_GETATTR            Buffers (Int, Str, Out(Struct(U64(3))))
    FILE_SETATTR            Buffers (Int, Str, In(Struct(U64(3))))
    LISTNS                  Buffers (Record(Id::MntIdReq), Out(Array(LONG, U64(2))))
    RSEQ_SLICE_YIELD        Plain ()
}
