#pragma once

#include <stdint.h>

typedef int kern_return_t;
typedef uint32_t task_id_token_t;
typedef uintptr_t vm_size_t;

extern "C" vm_size_t vm_page_size;
