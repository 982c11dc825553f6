/* One small program, installed under the names of other batch systems' commands.

It sends the typed command to the manager, through the socket in the run's directory, and prints the answer (the protocol
is in vrm/ext/slurm/calls/wire.py). If the manager runs on another node or was lost, or if the command is one of LOCAL,
this program continues as vrm/ext/slurm/calls/client.py.

Under its own name PROGRAM it runs a program and records what that program has used (vrm/ext/steps/used.py).

vrm/ext/slurm/calls/build.py defines PYTHON, STEP (the Python code of a step), ROOT (the directory of the package vrm),
PROGRAM, LOCAL and READING (names between blanks), PATIENCE and SAYS_AFTER (milliseconds), GIVES_UP and WAITS (texts). */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

#define MOST (16u << 20)

static char *name;
static char **words;

/* Return whether the name, or the name with its first argument, is in a list of names between blanks. */

static int one_of(const char *names, const char *text, const char *more)
{
    char padded[64];
    return snprintf(padded, sizeof padded, " %s%s ", text, more) < (int)sizeof padded && strstr(names, padded);
}

/* Return whether the command changes nothing; "name:argument" in READING means only with that first argument. */

static int reads(void)
{
    char first[32] = "";
    if (words[1])
        snprintf(first, sizeof first, ":%s", words[1]);
    return one_of(READING, name, "") || (words[1] && one_of(READING, name, first));
}

/* Continue as Python, with these words and the typed arguments. */

static void go_on(char **first)
{
    int at = 0, count = 0;
    while (words[count])
        count++;
    char **argv = calloc(count + 16, sizeof *argv);
    if (!argv)
        exit(1);
    argv[at++] = (char *)PYTHON;
    while (*first)
        argv[at++] = *first++;
    for (int i = 1; i < count; i++)
        argv[at++] = words[i];
    execv(PYTHON, argv);
    fprintf(stderr, "%s: error: vrm cannot start %s: %s\n", name, PYTHON, strerror(errno));
    exit(1);
}

#define IN_PYTHON(WHAT)                                                                                                \
    "import sys; sys.path.insert(0, " ROOT "); from vrm.ext.slurm.calls.client import " WHAT "; sys.exit(" WHAT "(sys.argv[1:]))"

static void python(void)
{
    char *first[] = {"-I", "-c", IN_PYTHON("main"), name, NULL};
    go_on(first);
}

/* Run salloc or srun with a job that exists only for them. */

static void shell(void)
{
    char *first[] = {"-I", "-c", IN_PYTHON("shell"), name, NULL};
    go_on(first);
}

/* A growing array of bytes. */

struct bytes {
    char *data;
    size_t size, room;
};

static void add(struct bytes *all, const void *data, size_t size)
{
    if (all->size + size > all->room) {
        all->room = 2 * (all->size + size) + 4096;
        all->data = realloc(all->data, all->room);
        if (!all->data) {
            fprintf(stderr, "%s: error: no memory\n", name);
            exit(1);
        }
    }
    memcpy(all->data + all->size, data, size);
    all->size += size;
}

static void add_text(struct bytes *all, const char *text)
{
    add(all, text, strlen(text) + 1);
}

static void put_length(char *at, uint32_t length)
{
    for (int i = 0; i < 4; i++)
        at[i] = (char)(length >> (8 * i) & 255);
}

static uint32_t get_length(const unsigned char *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static int write_all(int to, const char *data, size_t size)
{
    while (size) {
        ssize_t done = write(to, data, size);
        if (done < 0) {
            if (errno == EINTR)
                continue;
            if (errno == EAGAIN) {
                struct pollfd ready = {to, POLLOUT, 0};
                poll(&ready, 1, -1);
                continue;
            }
            return -1;
        }
        data += done;
        size -= done;
    }
    return 0;
}

static int send_frame(int to, char kind, const char *data, size_t size)
{
    char head[5] = {kind};
    put_length(head + 1, (uint32_t)size);
    return write_all(to, head, 5) || write_all(to, data, size);
}

static void unanswered(const char *why)
{
    fprintf(stderr, "%s: error: the manager of vrm has not answered (%s); is it still there? `vrm queue` shows\n",
            name, why);
    exit(1);
}

/* Connect to the socket by a path that is short even if the directory's path is long. */

static int reached(const char *directory, uid_t *uid)
{
    int folder = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return -1;
    int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/socket", folder);
    int failed;
    do
        failed = client < 0 || connect(client, (struct sockaddr *)&address, sizeof address);
    while (failed && errno == EINTR);
    close(folder);
    if (failed) {
        if (client >= 0)
            close(client);
        return -1;
    }
    struct ucred peer;
    socklen_t size = sizeof peer;
    *uid = getsockopt(client, SOL_SOCKET, SO_PEERCRED, &peer, &size) ? (uid_t)-1 : peer.uid;
    return client;
}

static int connected(const char *directory)
{
    uid_t uid;
    int client = reached(directory, &uid);
    if (client >= 0 && uid != geteuid()) {
        fprintf(stderr, "%s: error: the manager in %s is not yours\n", name, directory);
        exit(1);
    }
    return client;
}

/* The name of the call, the numbers of printed bytes of the answer, and the file that was sent. */

static char token[64];
static unsigned long long given[3];
static struct {
    struct bytes text;
    char path[4097];
    int there;
} sent;

/* The manager was lost before it reported the result of the call: ask the next manager, or the journal. */

static void lost(void)
{
    char out[24], err[24], file[16] = "-1";
    snprintf(out, sizeof out, "%llu", given[1]);
    snprintf(err, sizeof err, "%llu", given[2]);
    if (sent.there) {
        int kept = memfd_create("vrm", 0);
        if (kept < 0 || write_all(kept, sent.text.data, sent.text.size) || lseek(kept, 0, SEEK_SET))
            unanswered(strerror(errno));
        snprintf(file, sizeof file, "%d", kept);
    }
    char *first[] = {"-I", "-c", IN_PYTHON("again"), token, out, err, file, sent.path, name, NULL};
    signal(SIGPIPE, SIG_DFL);
    go_on(first);
}

static void send_file(int to, const char *path)
{
    struct bytes all = {0};
    char part[1 << 16];
    int from = *path ? open(path, O_RDONLY | O_CLOEXEC) : 0;
    ssize_t got = from < 0 ? -1 : 0;
    while (from >= 0 && (got = read(from, part, sizeof part))) {
        if (got < 0) {
            if (errno == EINTR)
                continue;
            break;
        }
        if (all.size + got > MOST) {
            errno = EFBIG;
            got = -1;
            break;
        }
        add(&all, part, got);
    }
    const char *why = got < 0 ? strerror(errno) : "";
    if (from > 0)
        close(from);
    if (got >= 0) {
        sent.text = all;
        strcpy(sent.path, path);
        sent.there = 1;
    }
    if (got < 0 ? send_frame(to, 'F', why, strlen(why)) : send_frame(to, 'D', all.data, all.size))
        lost();
}

static const char ENDING[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, 0};
enum { DEAF = 5000 }; /* milliseconds within which the manager has to answer one of these signals */
static volatile sig_atomic_t caught;
static int caught_by[2];

static void catch(int number)
{
    int before = errno;
    char byte = (char)number;
    caught = number;
    if (write(caught_by[1], &byte, 1) < 0) {
    }
    errno = before;
}

/* Pass signals to the manager, which answers them and applies them to the waiting command. */

static void pass_signals_on(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGALRM};
    if (pipe2(caught_by, O_CLOEXEC | O_NONBLOCK))
        return;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction now, act = {.sa_handler = catch};
        if (!sigaction(numbers[i], NULL, &now) && now.sa_handler != SIG_IGN)
            sigaction(numbers[i], &act, NULL);
    }
}

/* Let the server of the job's steps start the step, and exit with its status. Returns if that is not possible;
   nothing has been done then. */

static void served(void)
{
    const char *directory = getenv("VRM_STEPS");
    uid_t uid;
    if (isatty(0) || isatty(1) || isatty(2))
        return;
    int files[4] = {0, 1, 2, open(".", O_PATH | O_DIRECTORY | O_CLOEXEC)};
    int server = files[3] < 0 ? -1 : reached(directory, &uid);
    if (server < 0 || uid != geteuid())
        return;
    struct bytes call = {0};
    char number[16];
    int count = 0;
    while (words[count])
        count++;
    add(&call, "\0\0\0", 4);
    snprintf(number, sizeof number, "%d", count - 1);
    add_text(&call, number);
    for (int i = 1; i < count; i++)
        add_text(&call, words[i]);
    for (char **each = environ; *each; each++)
        add_text(&call, *each);
    put_length(call.data, (uint32_t)(call.size - 4));
    union {
        char room[CMSG_SPACE(sizeof files)];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec first = {call.data, call.size < 1 << 16 ? call.size : 1 << 16};
    struct msghdr message = {.msg_iov = &first, .msg_iovlen = 1, .msg_control = control.room,
                             .msg_controllen = sizeof control.room};
    struct cmsghdr *about = CMSG_FIRSTHDR(&message);
    about->cmsg_level = SOL_SOCKET;
    about->cmsg_type = SCM_RIGHTS;
    about->cmsg_len = CMSG_LEN(sizeof files);
    memcpy(CMSG_DATA(about), files, sizeof files);
    /* Block signals until the step's process exists, to which they are passed. */
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    ssize_t sent = sendmsg(server, &message, MSG_NOSIGNAL);
    char got[64];
    size_t have = 0;
    long pid = 0;
    if (sent > 0) {
        while ((size_t)sent < call.size) {
            ssize_t more = send(server, call.data + sent, call.size - sent, MSG_NOSIGNAL);
            if (more <= 0)
                break;
            sent += more;
        }
        while (have < sizeof got - 1 && read(server, got + have, 1) == 1 && got[have++] != '\n')
            ;
        got[have] = 0;
        pid = have && got[have - 1] == '\n' ? atol(got) : 0;
    }
    free(call.data);
    if (pid <= 0) {
        close(server);
        close(files[3]);
        sigprocmask(SIG_SETMASK, &before, NULL);
        return;
    }
    pass_signals_on();
    sigprocmask(SIG_SETMASK, &before, NULL);
    int last = SIGKILL;
    have = 0;
    for (;;) {
        struct pollfd ready[2] = {{server, POLLIN, 0}, {caught_by[0], POLLIN, 0}};
        if (poll(ready, 2, -1) < 0 && errno != EINTR)
            exit(1);
        if (caught) {
            char byte;
            caught = 0;
            while (read(caught_by[0], &byte, 1) == 1)
                kill((pid_t)pid, last = byte);
        }
        if (!(ready[0].revents & (POLLIN | POLLHUP | POLLERR)))
            continue;
        ssize_t size = read(server, got + have, sizeof got - 1 - have);
        if (size < 0 && errno == EINTR)
            continue;
        if (size <= 0)
            exit(128 + last);
        have += size;
        got[have] = 0;
        if (memchr(got, '\n', have))
            exit(atoi(got));
    }
}

/* srun in a script job is a step, which does not involve the manager. The server of the job's steps starts it
   (vrm/ext/steps/server.py); without a server Python does. */

static void step(void)
{
    served();
    char *first[] = {"-I", "-S", "-c", "import sys; sys.path.insert(0, " ROOT "); " STEP, NULL};
    go_on(first);
}

/* Run the program words[2] with its arguments and exit with its status. Write what it has used to the file words[1].
   Signals are blocked here; the program gets them with its process group. */

static void measured(void)
{
    sigset_t all, before;
    struct sigaction waits = {.sa_handler = SIG_DFL}, theirs;
    int status;
    sigaction(SIGCHLD, &waits, &theirs);
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    pid_t pid = words[1] && words[2] ? fork() : -1;
    if (!pid) {
        sigaction(SIGCHLD, &theirs, NULL);
        sigprocmask(SIG_SETMASK, &before, NULL);
        execvp(words[2], words + 2);
        fprintf(stderr, "vrm: cannot start %s: %s\n", words[2], strerror(errno));
        _exit(errno == ENOENT ? 127 : 126);
    }
    if (pid < 0 || waitpid(pid, &status, 0) < 0)
        exit(1);
    struct rusage used;
    char line[100];
    getrusage(RUSAGE_CHILDREN, &used);
    int size = snprintf(line, sizeof line, "%ld.%06ld %ld.%06ld %ld\n", (long)used.ru_utime.tv_sec,
                        (long)used.ru_utime.tv_usec, (long)used.ru_stime.tv_sec, (long)used.ru_stime.tv_usec,
                        used.ru_maxrss);
    int to = open(words[1], O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (to >= 0)
        write_all(to, line, size);
    if (WIFSIGNALED(status)) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(WTERMSIG(status), SIG_DFL);
        sigemptyset(&all);
        sigaddset(&all, WTERMSIG(status));
        sigprocmask(SIG_UNBLOCK, &all, NULL);
        kill(getpid(), WTERMSIG(status));
    }
    exit(WEXITSTATUS(status));
}

static void print(int to, const char *data, size_t size)
{
    if (write_all(to, data, size) && errno == EPIPE)
        exit(141);
    given[to] += size;
}

int main(int argc, char **argv)
{
    char *slash = strrchr(argv[0], '/');
    (void)argc;
    name = slash ? slash + 1 : argv[0];
    words = argv;
    if (!strcmp(name, PROGRAM))
        measured();
    if (!strcmp(name, "srun") && getenv("VRM_STEPS"))
        step();
    const char *directory = getenv("VRM_DIRECTORY");
    if (one_of(LOCAL, name, ""))
        python();
    int manager = directory && *directory ? connected(directory) : -1;
    if (manager < 0)
        python();
    struct bytes call = {0};
    char head[8] = "VRM1", number[16], *cwd = getcwd(NULL, 0);
    add(&call, head, 8);
    add_text(&call, cwd ? cwd : "/");
    add_text(&call, name);
    snprintf(number, sizeof number, "%d", argc - 1);
    add_text(&call, number);
    for (int i = 1; i < argc; i++)
        add_text(&call, argv[i]);
    for (char **each = environ; *each; each++)
        add_text(&call, *each);
    char input[300], host[256] = "";
    gethostname(host, sizeof host - 1);
    snprintf(input, sizeof input, "VRM_STDIN=%ld@%s", (long)getpid(), host);
    add_text(&call, input);
    struct timespec now;
    uint32_t chance = (uint32_t)getpid();
    clock_gettime(CLOCK_REALTIME, &now);
    if (getrandom(&chance, sizeof chance, GRND_NONBLOCK) < 0)
        errno = 0;
    snprintf(token, sizeof token, "%020lld.%08x", now.tv_sec * 1000000000LL + now.tv_nsec, chance);
    snprintf(input, sizeof input, "VRM_CALL=%s", token);
    add_text(&call, input);
    if (call.size > MOST)
        unanswered("its arguments are too long");
    put_length(call.data + 4, (uint32_t)(call.size - 8));
    signal(SIGPIPE, SIG_IGN);
    pass_signals_on();
    if (write_all(manager, call.data, call.size))
        lost();
    free(call.data);
    struct bytes got = {0};
    char part[1 << 16];
    int last = 0; /* a signal that the manager has not answered yet; it ends this program if no answer comes */
    int reading = reads(), limit = reading ? PATIENCE : SAYS_AFTER;
    for (;;) {
        struct pollfd ready[2] = {{manager, POLLIN, 0}, {caught_by[0], POLLIN, 0}};
        int found = poll(ready, 2, last ? DEAF : limit);
        if (found < 0 && errno != EINTR)
            unanswered(strerror(errno));
        if (!found && last) {
            fprintf(stderr, "%s: error: the manager of vrm does not answer\n", name);
            exit(128 + last);
        }
        if (!found) {
            fprintf(stderr, "%s: %s%s\n", name, reading ? "error: " : "", reading ? GIVES_UP : WAITS);
            if (reading)
                exit(1);
            limit = -1;
        }
        if (caught) {
            char byte;
            caught = 0;
            while (read(caught_by[0], &byte, 1) == 1) {
                if (strchr(ENDING, byte))
                    last = byte;
                int size = snprintf(number, sizeof number, "%d", byte);
                send_frame(manager, 'K', number, size);
            }
        }
        if (!(ready[0].revents & (POLLIN | POLLHUP | POLLERR)))
            continue;
        ssize_t size = read(manager, part, sizeof part);
        if (size < 0 && errno == EINTR)
            continue;
        if (size <= 0)
            lost();
        last = 0;
        if (!reading)
            limit = -1;
        add(&got, part, size);
        size_t at = 0;
        while (got.size - at >= 5) {
            uint32_t length = get_length((unsigned char *)got.data + at + 1);
            char kind = got.data[at];
            if (length > MOST)
                unanswered("it answers nonsense");
            if (got.size - at - 5 < length)
                break;
            char *data = got.data + at + 5;
            if (kind == 'O' || kind == 'E')
                print(kind == 'O' ? 1 : 2, data, length);
            else if (kind == 'X' || kind == 'I') {
                char text[4097];
                if (length >= sizeof text)
                    unanswered("it answers nonsense");
                memcpy(text, data, length);
                text[length] = 0;
                if (kind == 'X')
                    exit(atoi(text));
                send_file(manager, text);
            } else if (kind == 'S') {
                for (char *text = data; text < data + length; text += strlen(text) + 1)
                    if (putenv(strdup(text)))
                        unanswered(strerror(errno));
                signal(SIGPIPE, SIG_DFL);
                close(manager);
                if (getenv("VRM_ENTERED"))
                    shell();
                step();
            } else if (kind == 'P')
                python();
            at += 5 + length;
        }
        memmove(got.data, got.data + at, got.size - at);
        got.size -= at;
    }
}
