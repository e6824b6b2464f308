// What Apple's header of this name has, as far as metal-cpp and csrc/metal use it. The other files
// of this folder are the same of theirs; test/metal/objc.cpp has the functions.
#pragma once

struct objc_class;
struct objc_object {
  objc_class* isa;
};
typedef objc_object* id;
typedef objc_class* Class;
typedef struct objc_selector* SEL;
typedef objc_object Protocol;

extern "C" {
Class objc_lookUpClass(const char* name);
Protocol* objc_getProtocol(const char* name);
SEL sel_registerName(const char* name);
}
