// container: what the runtimes of containers put around a program, without one of them.
//
//     container [-o] [-u UID] [-r IMAGE] -- PROGRAM ARGS...
//
//     -o          the older profile, which refuses ptrace and process_vm_readv as well
//     -u UID      the program's user and group
//     -r IMAGE    the directory that is / to it, in place of the machine's
//
// The program is process 1 of its pid namespace, with a /proc and a bare /dev of its own. All other
// file systems are read-only, so there is no disk and no /tmp to write to. It has the capabilities
// that Docker leaves to root, and the system calls of Docker's default seccomp profile: the others
// fail with EPERM, clone with new namespaces too; clone3 and what came later with ENOSYS, for
// which programs have another way. We wait, and end with its exit code (128 and its signal).
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT(list) (sizeof(list) / sizeof *(list))

// Of <linux/mount.h>, which does not go with <sys/mount.h>.
struct attributes { uint64_t set, clear, propagation, namespace; };
enum { READ_ONLY = 1, RECURSIVE = 0x8000, NEWEST_OF_PROFILE = 450 };

// Calls of x86-64 that the profile has for root with capabilities that a container lacks, or for
// nobody.
static const int REFUSED[] = {
    SYS_acct, SYS_add_key, SYS_bpf, SYS_clock_settime, SYS_delete_module, SYS_fanotify_init,
    SYS_finit_module, SYS_fsconfig, SYS_fsmount, SYS_fsopen, SYS_fspick, SYS_get_mempolicy,
    SYS_init_module, SYS_ioperm, SYS_iopl, SYS_kcmp, SYS_kexec_file_load, SYS_kexec_load,
    SYS_keyctl, SYS_mbind, SYS_migrate_pages, SYS_mount, SYS_mount_setattr, SYS_move_mount,
    SYS_move_pages, SYS_open_by_handle_at, SYS_open_tree, SYS_perf_event_open, SYS_pidfd_getfd,
    SYS_pivot_root, SYS_process_madvise, SYS_quotactl, SYS_quotactl_fd, SYS_reboot,
    SYS_request_key, SYS_set_mempolicy, SYS_setdomainname, SYS_sethostname, SYS_setns,
    SYS_settimeofday, SYS_swapoff, SYS_swapon, SYS_syslog, SYS_umount2, SYS_unshare,
    SYS_userfaultfd, SYS_vhangup,
    // As Docker has it since io_uring was found too large a target.
    SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register,
};
// Refused as well where the kernel is older than 4.8, or the runtime goes by such.
static const int REFUSED_ONCE[] = {SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev};
// clone with one of these makes a namespace.
#define NAMESPACES 0x7e020000u

static const int KEPT[] = {
    CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FSETID, CAP_FOWNER, CAP_MKNOD, CAP_NET_RAW, CAP_SETGID,
    CAP_SETUID, CAP_SETFCAP, CAP_SETPCAP, CAP_NET_BIND_SERVICE, CAP_SYS_CHROOT, CAP_KILL,
    CAP_AUDIT_WRITE,
};

static void die(const char *what) {
    fprintf(stderr, "container: %s: %s\n", what, strerror(errno));
    _exit(125);
}

static void mount_at(const char *kind, const char *at, unsigned long flags, const char *data) {
    if (mount(kind, at, kind, flags, data)) die(at);
}

// An image has empty directories proc, dev and sys.
static void enter(const char *image) {
    if (mount(image, image, NULL, MS_BIND | MS_REC, NULL) || chdir(image)) die(image);
    // With the memory groups, as runtimes show them.
    if (mount("/sys", "sys", NULL, MS_BIND | MS_REC, NULL)) die("/sys");
    if (syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/")) die(image);
}

static void bare_file_systems(const char *image) {
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) die("/");
    if (image) enter(image);
    struct attributes attributes = {.set = READ_ONLY};
    if (syscall(SYS_mount_setattr, AT_FDCWD, "/", RECURSIVE, &attributes, sizeof attributes)) {
        die("a read-only root");
    }
    mount_at("proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    mount_at("tmpfs", "/dev", MS_NOSUID | MS_STRICTATIME, "mode=755,size=64k");
    static const struct { const char *path; int minor; } nodes[] = {
        {"/dev/null", 3}, {"/dev/zero", 5}, {"/dev/full", 7}, {"/dev/random", 8},
        {"/dev/urandom", 9},
    };
    umask(0);
    for (unsigned i = 0; i < COUNT(nodes); i++) {
        if (mknod(nodes[i].path, S_IFCHR | 0666, makedev(1, nodes[i].minor))) die(nodes[i].path);
    }
    umask(022);
    if (symlink("/proc/self/fd", "/dev/fd") || symlink("/proc/self/fd/1", "/dev/stdout") ||
        symlink("/proc/self/fd/2", "/dev/stderr")) {
        die("/dev");
    }
}

static void few_capabilities(void) {
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability) >= 0; capability++) {
        int kept = 0;
        for (unsigned i = 0; i < COUNT(KEPT); i++) kept |= KEPT[i] == capability;
        if (!kept && prctl(PR_CAPBSET_DROP, capability)) die("capabilities");
    }
}

static struct sock_filter code[200];
static unsigned short length;

static void add(struct sock_filter step) { code[length++] = step; }

static void answer_to(int number, unsigned answer) {
    add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1));
    add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, answer));
}

static void few_system_calls(int older) {
    const unsigned refused = SECCOMP_RET_ERRNO | EPERM, missing = SECCOMP_RET_ERRNO | ENOSYS;
    const unsigned number = offsetof(struct seccomp_data, nr);
    const unsigned first = offsetof(struct seccomp_data, args[0]);
    add((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, number));
    for (unsigned i = 0; i < COUNT(REFUSED); i++) answer_to(REFUSED[i], refused);
    for (unsigned i = 0; older && i < COUNT(REFUSED_ONCE); i++) answer_to(REFUSED_ONCE[i], refused);
    answer_to(SYS_clone3, missing);
    add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, NEWEST_OF_PROFILE, 0, 1));
    add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, missing));
    add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0));
    add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    add((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, first));
    add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NAMESPACES, 0, 1));
    add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, refused));
    add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    struct sock_fprog program = {.len = length, .filter = code};
    // As root still: without no_new_privs, which runtimes do not set either.
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) die("seccomp");
}

static void become(char **argv, const char *image, long uid, int older) {
    bare_file_systems(image);
    few_capabilities();
    few_system_calls(older);
    if (uid >= 0) {
        if (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid)) die("user");
    }
    // After the change of user, which clears it.
    if (prctl(PR_SET_PDEATHSIG, SIGKILL)) die("pdeathsig");
    execvp(argv[0], argv);
    die(argv[0]);
}

int main(int argc, char **argv) {
    int option, older = 0;
    long uid = -1;
    const char *image = NULL;
    while ((option = getopt(argc, argv, "+or:u:")) != -1) {
        switch (option) {
        case 'o': older = 1; break;
        case 'r': image = optarg; break;
        case 'u': uid = strtol(optarg, NULL, 10); break;
        default: return 125;
        }
    }
    if (optind >= argc) return fprintf(stderr, "container: no program\n"), 125;
    if (unshare(CLONE_NEWNS | CLONE_NEWPID)) die("namespaces");
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) become(argv + optind, image, uid, older);
    int status;
    if (waitpid(child, &status, 0) != child) die("wait");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
