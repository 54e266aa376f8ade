#include "tests/sim/tasks.h"

#include <assert.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>

/* A thread of the machine; it is kept for the next task when its own has ended. */
typedef struct task_thread {
    pthread_t thread;
    sem_t turn;
    sim_task *task; /* NULL: it is to end */
    struct task_thread *next;
} task_thread;

struct sim_task {
    void *(*run)(void *);
    void *arg;
    task_thread *thread; /* NULL: not begun, or ended */
    bool ended;
};

static task_thread *idle;
static sim_task *running;
static sem_t scheduler_turn;
static bool scheduler_opened;

static void task_wait(sem_t *turn)
{
    while (sem_wait(turn) != 0)
        ; /* a signal */
}

static void *task_main(void *arg)
{
    task_thread *t = arg;
    task_wait(&t->turn);
    while (t->task != NULL) {
        t->task->run(t->task->arg);
        t->task->ended = true;
        t->task->thread = NULL;
        t->next = idle;
        idle = t;
        sem_post(&scheduler_turn);
        task_wait(&t->turn);
    }
    return NULL;
}

static task_thread *task_thread_take(void)
{
    task_thread *t = idle;
    if (t != NULL) {
        idle = t->next;
        return t;
    }
    t = calloc(1, sizeof(*t));
    assert(t != NULL);
    sem_init(&t->turn, 0, 0);
    int failed = pthread_create(&t->thread, NULL, task_main, t);
    assert(failed == 0);
    return t;
}

sim_task *sim_task_new(void *(*run)(void *), void *arg)
{
    sim_task *task = calloc(1, sizeof(*task));
    assert(task != NULL);
    *task = (sim_task){.run = run, .arg = arg};
    return task;
}

void sim_task_resume(sim_task *task)
{
    assert(running == NULL && !task->ended);
    if (!scheduler_opened)
        sem_init(&scheduler_turn, 0, 0);
    scheduler_opened = true;
    if (task->thread == NULL) {
        task->thread = task_thread_take();
        task->thread->task = task;
    }
    running = task;
    sem_post(&task->thread->turn);
    task_wait(&scheduler_turn);
    running = NULL;
}

void sim_task_give_way(void)
{
    task_thread *t = running->thread;
    sem_post(&scheduler_turn);
    task_wait(&t->turn);
}

sim_task *sim_task_self(void)
{
    return running;
}

bool sim_task_has_ended(const sim_task *task)
{
    return task->ended;
}

void sim_task_free(sim_task *task)
{
    assert(task->ended);
    free(task);
}

void sim_tasks_close(void)
{
    while (idle != NULL) {
        task_thread *t = idle;
        idle = t->next;
        t->task = NULL;
        sem_post(&t->turn);
        pthread_join(t->thread, NULL);
        sem_destroy(&t->turn);
        free(t);
    }
}
