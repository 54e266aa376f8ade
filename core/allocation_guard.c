/* allocation_guard.c - the C library's allocation functions, with a look at a flag first.
 *
 * Only with -Dallocation_guard=true. Defining malloc in the program replaces the library's for
 * everybody, also for the libraries that we use; the real ones are reached by glibc's other names
 * for them. */
#include "core/allocation_guard.h"

#include "core/message.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Thread_local bool guard_on;
static _Thread_local const char *guard_actor;
static _Thread_local uint32_t guard_kind;

void tr_guard_enter(const char *actor, uint32_t msg_kind)
{
    guard_actor = actor;
    guard_kind = msg_kind;
    guard_on = true;
}

void tr_guard_leave(void)
{
    guard_on = false;
}

bool tr_guard_pause(void)
{
    bool was_on = guard_on;
    guard_on = false;
    return was_on;
}

void tr_guard_resume(bool was_on)
{
    guard_on = was_on;
}

static void guard_check(const char *function, size_t size)
{
    if (!guard_on)
        return;
    guard_on = false;
    char text[256];
    int length =
        snprintf(text, sizeof(text), "%s allocates inside receive of %s: %s of %zu bytes\n",
                 guard_actor, tr_msg_kind_name(guard_kind), function, size);
    size_t size_of_text = length < (int)sizeof(text) ? (size_t)length : sizeof(text) - 1;
    if (write(STDERR_FILENO, text, size_of_text) < 0)
        abort(); /* nobody can be told, and going on is not an option */
    abort();
}

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

void *malloc(size_t size)
{
    guard_check("malloc", size);
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    guard_check("calloc", count * size);
    return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
    guard_check("realloc", size);
    return __libc_realloc(old, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    guard_check("aligned_alloc", size);
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size)
{
    guard_check("posix_memalign", size);
    void *memory = __libc_memalign(alignment, size);
    if (memory == NULL)
        return ENOMEM;
    *out = memory;
    return 0;
}
