// jail: put this process where a test wants it, then become the program.
//
//     jail [-g CGROUP_PROCS]... [-u UID] [-s] -- PROGRAM ARGS...
//
//     -g FILE   write our pid to FILE (a cgroup.procs): the program and all its children are in that group
//     -u UID    become that user and group, without supplementary groups
//     -s        refuse userfaultfd with EPERM, as the default seccomp profile of containers does
//
// The order matters: joining the group and installing the filter need root, so the user changes
// last. The program dies with the thread that started it, so an aborted test run leaves nothing
// behind.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

// USERFAULTFD_IOC_NEW, the ioctl of /dev/userfaultfd. A container has no such device; root outside
// one has.
#define USERFAULTFD_IOC_NEW 0xAA00

static void die(const char *what) {
    fprintf(stderr, "jail: %s: %s\n", what, strerror(errno));
    _exit(125);
}

static void refuse_userfaultfd(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, USERFAULTFD_IOC_NEW, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) die("no_new_privs");
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) die("seccomp");
}

static void join(const char *procs) {
    int fd = open(procs, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "0", 1) != 1) die(procs);
    close(fd);
}

int main(int argc, char **argv) {
    int option, filter = 0;
    long uid = -1;
    while ((option = getopt(argc, argv, "+g:u:s")) != -1) {
        switch (option) {
        case 'g': join(optarg); break;
        case 'u': uid = strtol(optarg, NULL, 10); break;
        case 's': filter = 1; break;
        default: return 125;
        }
    }
    if (optind >= argc) return fprintf(stderr, "jail: no program\n"), 125;
    if (filter) refuse_userfaultfd();
    if (uid >= 0) {
        if (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid)) die("user");
    }
    // After the change of user, which clears it.
    if (prctl(PR_SET_PDEATHSIG, SIGKILL)) die("pdeathsig");
    execvp(argv[optind], argv + optind);
    die(argv[optind]);
}
