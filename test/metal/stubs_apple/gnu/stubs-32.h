// Of glibc, which stands in for the C library of macOS where csrc/metal is checked for it.
#pragma once
