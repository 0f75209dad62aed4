// Writes the NVTX ranges of a process to the file that NVTX_LOG names, one a line. NVTX loads it where NVTX_INJECTION64_PATH says so.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void (*Function)(void);
typedef struct {
  size_t size;
  int (*functions)(uint32_t module, Function*** out, unsigned* count);
} Callbacks;

static FILE* log_file;
static int depth;

static int push(const char* name) {
  fprintf(log_file, "%*s%s\n", 2 * depth, "", name);
  fflush(log_file);
  return depth++;
}

static int pop(void) { return --depth; }

int InitializeInjectionNvtx2(const void* (*table)(uint32_t id)) {
  const Callbacks* callbacks = table(1);
  Function** functions;
  unsigned count;
  const char* path = getenv("NVTX_LOG");
  // Of the core module's functions, 9 is nvtxRangePushA and 11 is nvtxRangePop.
  if (!path || !callbacks || !callbacks->functions(1, &functions, &count) || count < 12) return 0;
  if (!(log_file = fopen(path, "a"))) return 0;
  *functions[9] = (Function)push;
  *functions[11] = (Function)pop;
  return 1;
}
