"""Run a module as a script, as `python -m` does, in a process without what Windows lacks."""

import ctypes
import os
import runpy
import signal
import sys

MODULES = ("fcntl", "grp", "pwd", "resource", "termios", "tty")
OF_OS = (
    *("O_DIRECTORY", "O_NOFOLLOW", "chown", "fchmod", "fchown", "fork", "forkpty", "getegid"),
    *("geteuid", "getgid", "getpgid", "getpriority", "getuid", "killpg", "lchown", "nice"),
    *("posix_fadvise", "posix_spawn", "register_at_fork", "sched_getaffinity", "setsid", "statvfs"),
    "sysconf",
)
OF_SIGNAL = (
    *("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGUSR1", "SIGUSR2", "alarm"),
    *("pthread_sigmask", "setitimer", "sigwait"),
)


def take_away() -> None:
    """Remove modules and names, and let folders not be opened."""
    for name in MODULES:
        sys.modules[name] = None  # an import raises ImportError
    for module, names in ((os, OF_OS), (signal, OF_SIGNAL)):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    system_open, library = os.open, ctypes.CDLL

    def open_file(path, *rest, **options):
        if isinstance(path, str | os.PathLike) and os.path.isdir(path):  # noqa: PTH112
            raise PermissionError(13, "Permission denied", str(path))
        return system_open(path, *rest, **options)

    class Library(library):
        def __init__(self, name, *rest, **options):
            if name is None:
                raise TypeError("argument of type 'NoneType' is not iterable")
            super().__init__(name, *rest, **options)

    os.open, ctypes.CDLL = open_file, Library


if __name__ == "__main__":
    take_away()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
