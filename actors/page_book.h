/* page_book.h - which pages of a KV pool belong to which slot, and how often each is held.
 *
 * A page that is full never changes, so slots that begin with the same positions may hold the same
 * pages. Every KV pool keeps a book for the addresses, and the batcher one for the counts: all are
 * led by the same reservations and releases, so the batcher's has never more free pages than any
 * other. */
#ifndef TR_ACTORS_PAGE_BOOK_H
#define TR_ACTORS_PAGE_BOOK_H

#include "actors/arena.h"

typedef struct {
    uint32_t count;
    uint32_t *pages; /* [pages per slot] page numbers, in order of positions */
} tr_page_list;

typedef struct {
    uint32_t pages_max;
    uint32_t free_count;
    uint32_t *free_pages; /* [pages_max] stack */
    uint16_t *holders;    /* [pages_max] slots that hold it; 0: free */
    tr_page_list *slots;  /* [slots_count] */
    uint32_t slots_count;
} tr_page_book;

/* Counts with a counting arena, takes with a real one; then all pages are free. */
void tr_page_book_load(tr_page_book *book, uint32_t pages_max, uint32_t slots_count,
                       uint32_t pages_per_slot, tr_arena *arena);

/* Gives a slot that has none its pages.
 *
 *   count   all of them
 *   other   slot that holds the first shared ones, when shared > 0
 *
 * False: too few are free; nothing has happened. */
bool tr_page_book_take(tr_page_book *book, uint32_t slot, uint32_t count, uint32_t other,
                       uint32_t shared);

/* Takes a slot's pages away; what no other slot holds is free. */
void tr_page_book_give(tr_page_book *book, uint32_t slot);

/* Whether a slot has a page that no other slot holds. */
bool tr_page_book_has_own(const tr_page_book *book, uint32_t slot);

/* What is held and what is free goes into a fresh book of the same size. */
void tr_page_book_adopt(tr_page_book *fresh, const tr_page_book *book);

#endif
