/* Client requests of callgrind, for ctypes. Outside valgrind they do nothing. */
#include <valgrind/callgrind.h>

int counting(void) { return RUNNING_ON_VALGRIND; }
void instrument(void) { CALLGRIND_START_INSTRUMENTATION; }
void zero(void) { CALLGRIND_ZERO_STATS; }
void toggle(void) { CALLGRIND_TOGGLE_COLLECT; }
void dump(const char *name) { CALLGRIND_DUMP_STATS_AT(name); }
