// glibc's <gnu/stubs.h> asks for it where the compiler does not define __LP64__ as Linux has it.
