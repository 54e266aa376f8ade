#include "actors/page_book.h"

#include <assert.h>
#include <string.h>

void tr_page_book_load(tr_page_book *book, uint32_t pages_max, uint32_t slots_count,
                       uint32_t pages_per_slot, tr_arena *arena)
{
    *book =
        (tr_page_book){.pages_max = pages_max, .free_count = pages_max, .slots_count = slots_count};
    book->free_pages = tr_arena_take(arena, pages_max * sizeof(*book->free_pages));
    book->holders = tr_arena_take(arena, pages_max * sizeof(*book->holders));
    book->slots = tr_arena_take(arena, slots_count * sizeof(*book->slots));
    for (uint32_t i = 0; i < slots_count; i++) {
        uint32_t *pages = tr_arena_take(arena, pages_per_slot * sizeof(*pages));
        if (book->slots != NULL)
            book->slots[i].pages = pages;
    }
    for (uint32_t i = 0; book->free_pages != NULL && i < pages_max; i++)
        book->free_pages[i] = pages_max - 1 - i; /* low pages first */
}

bool tr_page_book_take(tr_page_book *book, uint32_t slot, uint32_t count, uint32_t other,
                       uint32_t shared)
{
    tr_page_list *list = &book->slots[slot];
    assert(list->count == 0);
    assert(shared <= count);
    if (count - shared > book->free_count)
        return false;
    for (uint32_t i = 0; i < shared; i++) {
        assert(i < book->slots[other].count);
        list->pages[i] = book->slots[other].pages[i];
    }
    for (uint32_t i = shared; i < count; i++)
        list->pages[i] = book->free_pages[--book->free_count];
    for (uint32_t i = 0; i < count; i++)
        book->holders[list->pages[i]]++;
    list->count = count;
    return true;
}

void tr_page_book_give(tr_page_book *book, uint32_t slot)
{
    tr_page_list *list = &book->slots[slot];
    for (uint32_t i = list->count; i > 0; i--) {
        uint32_t page = list->pages[i - 1];
        assert(book->holders[page] > 0);
        if (--book->holders[page] == 0)
            book->free_pages[book->free_count++] = page;
    }
    assert(book->free_count <= book->pages_max);
    list->count = 0;
}

bool tr_page_book_has_own(const tr_page_book *book, uint32_t slot)
{
    const tr_page_list *list = &book->slots[slot];
    for (uint32_t i = list->count; i > 0; i--) /* those are at the end */
        if (book->holders[list->pages[i - 1]] == 1)
            return true;
    return false;
}

void tr_page_book_adopt(tr_page_book *fresh, const tr_page_book *book)
{
    assert(fresh->pages_max == book->pages_max && fresh->slots_count == book->slots_count);
    fresh->free_count = book->free_count;
    if (book->pages_max > 0) {
        memcpy(fresh->free_pages, book->free_pages, book->free_count * sizeof(*book->free_pages));
        memcpy(fresh->holders, book->holders, book->pages_max * sizeof(*book->holders));
    }
    for (uint32_t i = 0; i < book->slots_count; i++) {
        tr_page_list *to = &fresh->slots[i];
        const tr_page_list *from = &book->slots[i];
        to->count = from->count;
        if (from->count > 0)
            memcpy(to->pages, from->pages, from->count * sizeof(*from->pages));
    }
}
