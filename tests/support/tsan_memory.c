// What generated code for ThreadSanitizer calls and clang 14's runtime does not have yet: its memset and memcpy are the
// checked ones.
#include <string.h>

void *__tsan_memset(void *to, int byte, size_t bytes);
void *__tsan_memcpy(void *to, const void *from, size_t bytes);
void *__tsan_memmove(void *to, const void *from, size_t bytes);

void *__tsan_memset(void *to, int byte, size_t bytes) { return memset(to, byte, bytes); }
void *__tsan_memcpy(void *to, const void *from, size_t bytes) { return memcpy(to, from, bytes); }
void *__tsan_memmove(void *to, const void *from, size_t bytes) { return memmove(to, from, bytes); }
