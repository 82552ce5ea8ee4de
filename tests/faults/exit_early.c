/* Loaded into ranks of tests (LD_PRELOAD): on SIGUSR2 the process exits with 0, without a word to its peers. */
#include <signal.h>
#include <unistd.h>

static void leave(int signal) {
  (void)signal;
  _exit(0);
}

__attribute__((constructor)) static void prepare(void) {
  signal(SIGUSR2, leave);
}
