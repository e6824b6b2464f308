// Functions of ours in front of methods of torch's C types, which Python cannot replace.
#pragma once

#include <pybind11/pybind11.h>

namespace hologram::aten {

// Has a method of a C type call `ours`, whichever name of it is called; returns what it called
// before. `flags` is how the method is called (METH_NOARGS ...). Throws ImportError where the type
// has no such method. With the GIL.
PyCFunction replace_method(const pybind11::object& type, const char* name, int flags,
                           PyCFunction ours);

// Makes data_ptr() and const_data_ptr() of a tensor run what is recorded of the memory first, and
// adds address_of(tensor), which does not, to the module.
void cover_data_ptr(pybind11::module_& m);

}  // namespace hologram::aten
