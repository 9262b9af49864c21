// The clock of a server that loads this first: that of the machine, and the seconds that the file CLOCK holds.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

int gettimeofday(struct timeval *now, void *zone) {
  static volatile long *ahead;
  if (!ahead) ahead = mmap(0, sizeof *ahead, PROT_READ, MAP_SHARED, open(getenv("CLOCK"), O_RDONLY), 0);
  syscall(SYS_gettimeofday, now, zone);
  now->tv_sec += *ahead;
  return 0;
}
