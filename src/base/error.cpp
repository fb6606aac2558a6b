#include "base/error.h"

namespace convoy {

Error& Error::at(const std::string& where) {
  where_ = where_.empty() ? where : where_ + ", " + where;
  compose();
  return *this;
}

Error& Error::mend(const std::string& remedy) {
  remedy_ = remedy;
  compose();
  return *this;
}

void Error::compose() {
  full_ = message_;
  if (!where_.empty()) full_ += " [" + where_ + "]";
  if (!remedy_.empty()) full_ += "; " + remedy_;
}

}  // namespace convoy
